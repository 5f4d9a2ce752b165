"""Per-layer plans against brute force over every assignment of boundaries to layers."""

from __future__ import annotations

import itertools

import pytest

from recompute.config.choice import NO_RECOMPUTE, LayerSpan, RecomputeChoice, full, selective
from recompute.config.gpus import find_gpu
from recompute.config.normalize import normalize
from recompute.config.schema import JobConfig
from recompute.search.budget import budget_of
from recompute.search.cost import CostModel
from recompute.search.outcome import Judge
from recompute.search.per_layer import ENCLOSING, WHOLE_LAYER
from recompute.search.plan import plan
from recompute.timeline.layers import acting_boundaries
from recompute.timeline.predict import Predictor
from recompute.units import GIB

from ..timeline.jobs import job as h200_job
from .fakes import small_job

SMALL = small_job(**{"hardware.gpu": "h200"})
TENSORWISE = {"fp8": "hybrid", "fp8_recipe": "tensorwise"}


def assignment(modules: tuple[tuple[str, ...], ...]) -> RecomputeChoice:
    spans = (LayerSpan(first=i, last=i, modules=m) for i, m in enumerate(modules) if m)
    return RecomputeChoice(per_layer=tuple(spans))


def every_assignment() -> list[tuple[int, float]]:
    """Return peak and overhead of all assignments of boundaries to the four layers."""
    predictor = Predictor(SMALL)
    control = predictor.predict(NO_RECOMPUTE)
    judge = Judge(predictor, CostModel(SMALL, find_gpu("h200")), budget_of(SMALL, "9GiB"), control)
    options = ((), ("mlp",), ("mlp_act",), (WHOLE_LAYER,))
    outcomes = (judge.outcome(assignment(m)) for m in itertools.product(options, repeat=4))
    return [(o.peak_bytes, o.step_time_overhead) for o in outcomes]


BRUTE = every_assignment()


@pytest.mark.parametrize("budget", sorted({peak for peak, _ in BRUTE})[::4])
def test_the_mix_is_never_better_than_brute_force_and_at_most_one_layer_worse(budget: int) -> None:
    best = min(overhead for peak, overhead in BRUTE if peak <= budget)
    answer = plan(SMALL, budget, per_layer=True)
    assert answer.chosen is not None
    predictor = Predictor(SMALL)
    cost = CostModel(SMALL, find_gpu("h200"))
    one = assignment(((WHOLE_LAYER,), (), (), ()))
    layer = cost.overhead(predictor.predict(NO_RECOMPUTE), predictor.predict(one))
    assert best <= answer.chosen.step_time_overhead + 1e-9
    assert answer.chosen.step_time_overhead <= best + layer


def test_it_beats_the_best_stock_choice_where_that_must_take_a_whole_label() -> None:
    answer = plan(h200_job(), "20GiB", per_layer=True)
    assert answer.stock is not None
    assert answer.chosen is not None
    assert answer.chosen.step_time_overhead <= answer.stock.step_time_overhead
    assert answer.chosen.peak_bytes <= 20 * GIB


def test_the_gain_over_stock_on_the_h200_job_at_every_half_gibibyte() -> None:
    """Every budget that forces some recompute is won, most by more than five percent of the step."""
    gains = []
    for half in range(34, 50):
        answer = plan(h200_job(), half * GIB // 2, per_layer=True)
        assert answer.stock is not None
        assert answer.chosen is not None
        gains.append(answer.stock.step_time_overhead - answer.chosen.step_time_overhead)
    assert min(gains) > 0
    assert sum(gain > 0.05 for gain in gains) >= len(gains) / 2


def test_cold_stages_pay_nothing() -> None:
    job = small_job(
        num_layers=8,
        pipeline_model_parallel_size=2,
        **{"hardware.num_gpus": 2, "hardware.gpu": "h200"},
    )
    predictor = Predictor(job)
    first, last = (row.peak.peak_bytes for row in predictor.predict(NO_RECOMPUTE).ranks)
    assert first != last
    hot = 0 if first > last else 1
    answer = plan(job, (first + last) // 2, per_layer=True)
    assert answer.chosen is not None
    assert answer.chosen.choice.per_layer
    numbers = {n for s in answer.chosen.choice.per_layer for n in range(s.first, s.last + 1)}
    assert numbers <= set(range(hot * 4, hot * 4 + 4))


def test_nothing_is_mixed_when_no_recompute_fits() -> None:
    answer = plan(h200_job(), "100GiB", per_layer=True)
    assert answer.chosen is not None
    assert answer.chosen.choice == NO_RECOMPUTE
    assert all(o.choice.per_layer is None for o in answer.alternatives)


def test_spans_that_touch_with_the_same_modules_are_one() -> None:
    answer = plan(h200_job(), "18GiB", per_layer=True)
    assert answer.chosen is not None
    spans = answer.chosen.choice.per_layer
    assert spans is not None
    for left, right in itertools.pairwise(spans):
        assert left.last < right.first
        assert left.last + 1 < right.first or left.modules != right.modules
    assert selective("mlp") in {o.choice for o in answer.alternatives}


def test_a_plan_without_it_says_what_it_would_win() -> None:
    answer = plan(h200_job(), "20GiB")
    mixed = plan(h200_job(), "20GiB", per_layer=True)
    assert mixed.chosen is not None
    hint = f"a per-layer plan would cost {mixed.chosen.step_time_overhead:+.1%} in place of"
    assert any(line.startswith(hint) for line in answer.why)
    assert not any("per-layer plan would" in line for line in mixed.why)


@pytest.mark.parametrize("fields", [TENSORWISE, {"cuda_graph_impl": "full_iteration"}])
def test_boundaries_without_a_label_are_left_out_where_discarding_is_not_known_to_be_safe(
    fields: dict[str, str],
) -> None:
    def used(job: JobConfig) -> set[str]:
        peak = Predictor(normalize(job)).predict(NO_RECOMPUTE).hot.peak.peak_bytes
        found = plan(job, int(peak * 0.95), per_layer=True).alternatives
        spans = [s for o in found for s in o.choice.per_layer or ()]
        return {label for span in spans for label in span.modules}

    assert "mlp_act" in used(small_job(**{"hardware.gpu": "h200"}))
    assert "mlp_act" not in used(small_job(**fields, **{"hardware.gpu": "h200"}))


def test_a_norm_before_one_linear_is_a_boundary_of_the_local_spec_alone() -> None:
    def active(implementation: str) -> set[str]:
        return set(Predictor(small_job(transformer_impl=implementation)).active_layers())

    assert "norm_act" in active("local")
    assert "norm_act" not in active("transformer_engine")


def test_a_norm_boundary_keeps_what_the_label_keeps_and_peaks_no_higher() -> None:
    job = small_job(transformer_impl="local", **{"hardware.gpu": "h200"})
    predictor = Predictor(job)
    cost = CostModel(job, find_gpu("h200"))
    control = predictor.predict(NO_RECOMPUTE)

    def on_all_layers(*modules: str) -> tuple[int, int, float]:
        found = predictor.predict(assignment((modules,) * 4))
        hot = found.hot
        return (
            hot.activation_bytes_after_forward,
            hot.peak.peak_bytes,
            cost.overhead(control, found),
        )

    label, ours = on_all_layers("layernorm"), on_all_layers("norm_act")
    assert ours[0] == label[0] < control.hot.activation_bytes_after_forward
    assert ours[1] <= label[1]
    assert ours[2] == label[2] > 0


@pytest.mark.parametrize("share", [0.9, 0.95, 0.98])
def test_plans_of_the_local_spec_draw_no_two_boundaries_around_one_tensor(share: float) -> None:
    job = small_job(transformer_impl="local", **{"hardware.gpu": "h200"})
    peak = Predictor(job).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    answer = plan(job, int(peak * share), per_layer=True)
    assert answer.chosen is not None
    for span in answer.chosen.choice.per_layer or ():
        for name, around in ENCLOSING.items():
            assert name not in span.modules or not set(around) & set(span.modules)


def test_whole_layers_are_left_out_where_full_recompute_is_not_legal() -> None:
    job = small_job(
        num_moe_experts=8,
        moe_grouped_gemm=True,
        moe_ffn_hidden_size=4096,
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=2,
        overlap_moe_expert_parallel_comm=True,
        **{"hardware.num_gpus": 2, "hardware.gpu": "h200"},
    )
    peak = Predictor(normalize(job)).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    found = plan(job, int(peak * 0.9), per_layer=True).alternatives
    assert not any(o.choice.recompute_granularity == "full" for o in found)
    spans = [span for o in found for span in o.choice.per_layer or ()]
    assert spans
    assert not any(WHOLE_LAYER in span.modules for span in spans)


@pytest.mark.parametrize(("fields", "drawn"), [({}, True), (TENSORWISE, False)])
def test_whole_layers_are_drawn_only_where_apply_can_draw_them(
    fields: dict[str, str], drawn: bool
) -> None:
    job = small_job(**fields, **{"hardware.gpu": "h200"})
    predictor = Predictor(normalize(job))
    least = predictor.predict(full("block", 4)).hot.peak.peak_bytes
    most = predictor.predict(NO_RECOMPUTE).hot.peak.peak_bytes
    found = [
        span
        for share in (0.1, 0.3, 0.5, 0.7)
        for outcome in plan(job, int(least + share * (most - least)), per_layer=True).alternatives
        for span in outcome.choice.per_layer or ()
    ]
    assert any(WHOLE_LAYER in span.modules for span in found) is drawn


MIXED = {
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 128,
    "moe_layer_freq": (0, 1, 1, 1),
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
}


def test_a_span_names_only_what_acts_on_its_layers() -> None:
    """A dense layer has no ``moe``, an expert layer no ``mlp`` and no ``mlp_act``."""
    job = small_job(**{"hardware.gpu": "h200", **MIXED})
    acting = acting_boundaries(job, Predictor(job).stages)
    assert "mlp" in acting[0]
    assert "mlp" not in acting[1]
    stock = plan(job, "1000GiB", details=False).alternatives
    low, high = min(o.peak_bytes for o in stock), max(o.peak_bytes for o in stock)
    found = 0
    for part in range(1, 8):
        chosen = plan(job, low + (high - low) * part // 8, per_layer=True).chosen
        for span in (chosen and chosen.choice.per_layer) or ():
            found += 1
            for number in range(span.first, span.last + 1):
                assert acting[number].issuperset(span.modules), span
    assert found
