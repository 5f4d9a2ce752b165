"""The planner against brute force over made-up predictions, and on the H200 rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice, full, selective
from recompute.config.revision import Revision
from recompute.errors import ConfigError
from recompute.search.outcome import mark_dominated
from recompute.search.plan import plan
from recompute.search.space import candidates
from recompute.search.types import Outcome, Plan, Status
from recompute.timeline.predict import Predictor

from ..timeline.jobs import job as h200_job
from .fakes import GIB, FakePredictor, small_job
from .test_cost import ROWS, choice_of_row

ACTIVE = {"core_attn": 4, "layernorm": 4, "mlp": 4}
JOB = small_job(transformer_impl="local")
SPACE = candidates(JOB, Revision("0.19"), ACTIVE)
DATA = Path(__file__).parent.parent / "data"

figures = st.lists(
    st.tuples(st.integers(min_value=50, max_value=90), st.integers(min_value=0, max_value=4)),
    min_size=len(SPACE),
    max_size=len(SPACE),
)


def made_up(figures: list[tuple[int, int]]) -> FakePredictor:
    """Return a predictor with a peak and a replay for each choice; none replays nothing."""
    table = dict(zip(SPACE, figures, strict=True))
    return FakePredictor(
        JOB,
        peak=lambda choice: table[choice][0],
        replay=lambda choice: 0 if choice == NO_RECOMPUTE else table[choice][1] * 10**13,
        active=ACTIVE,
    )


def solve(predictor: FakePredictor, budget: int, **more: Any) -> Plan:
    return plan(predictor.job, budget, details=False, predictor_of=lambda _: predictor, **more)


@settings(max_examples=60, deadline=None)
@given(figures, st.integers(min_value=45, max_value=95), st.integers(min_value=0, max_value=6))
def test_the_answer_is_that_of_brute_force(
    figures: list[tuple[int, int]], budget: int, margin: int
) -> None:
    predictor = made_up(figures)
    answer = solve(predictor, budget, margin=margin)
    peaks = {c: predictor.peak(c) for c in SPACE}
    fitting = [c for c in SPACE if peaks[c] + margin <= budget]  # type: ignore[operator]
    assert {o.choice for o in answer.alternatives} == set(SPACE)
    if NO_RECOMPUTE in fitting:
        assert answer.status is Status.ALREADY_FITS
        assert answer.chosen is not None
        assert answer.chosen.choice == NO_RECOMPUTE
    elif fitting:
        assert answer.status is Status.PLANNED
        assert answer.chosen is not None
        assert answer.chosen.choice in fitting
        assert predictor.replay(answer.chosen.choice) == min(map(predictor.replay, fitting))
    else:
        assert answer.status is Status.INFEASIBLE
        assert answer.chosen is None
        assert answer.closest is not None
        assert answer.closest.breach is not None
        low = min(peaks.values())  # type: ignore[type-var]
        assert answer.closest.breach.over_bytes == low + margin - budget  # type: ignore[operator]


@settings(max_examples=40, deadline=None)
@given(figures, st.integers(min_value=45, max_value=95))
def test_the_ranking_is_feasible_first_then_cheapest_and_stable(
    figures: list[tuple[int, int]], budget: int
) -> None:
    first, second = (solve(made_up(figures), budget).alternatives for _ in range(2))
    assert first == second
    fits = [outcome.fits for outcome in first]
    assert fits == sorted(fits, reverse=True)
    costs = [outcome.step_time_overhead for outcome in first if outcome.fits]
    assert costs == sorted(costs)
    overs = [outcome.breach.over_bytes for outcome in first if outcome.breach is not None]
    assert overs == sorted(overs)


@settings(max_examples=40, deadline=None)
@given(figures)
def test_an_outcome_is_dominated_exactly_when_another_is_no_worse(
    figures: list[tuple[int, int]],
) -> None:
    outcomes = solve(made_up(figures), 100).alternatives
    for index, outcome in enumerate(outcomes):
        better = [
            other
            for place, other in enumerate(outcomes)
            if other.peak_bytes <= outcome.peak_bytes
            and other.step_time_overhead <= outcome.step_time_overhead
            and (
                (other.peak_bytes, other.step_time_overhead)
                != (outcome.peak_bytes, outcome.step_time_overhead)
                or place < index
            )
        ]
        assert outcome.dominated == bool(better)


def test_ties_go_to_the_narrower_boundary() -> None:
    predictor = FakePredictor(
        JOB,
        peak=lambda choice: 90 if choice == NO_RECOMPUTE else 50,
        replay=lambda choice: 0 if choice == NO_RECOMPUTE else 10**13,
        active=ACTIVE,
    )
    order = [outcome.choice for outcome in solve(predictor, 60).alternatives]
    assert order[:3] == [selective("core_attn"), selective("layernorm"), selective("mlp")]
    assert order[-2] == full("uniform", 4)
    assert order[-1] == NO_RECOMPUTE


def test_the_breach_names_the_rank_that_is_most_over() -> None:
    job = small_job(pipeline_model_parallel_size=2, **{"hardware.num_gpus": 2})
    predictor = FakePredictor(job, peak=lambda _: (70, 80), replay=lambda _: 0)
    answer = solve(predictor, 60)
    assert answer.closest is not None
    assert answer.closest.breach is not None
    assert dict(answer.closest.breach.rank) == {"pp": 1}
    assert answer.closest.breach.over_bytes == 20


def test_dominated_marks_keep_the_first_of_equals() -> None:
    def outcome(cost: float, peak: int) -> Outcome:
        return Outcome(
            choice=NO_RECOMPUTE,
            peak_bytes=peak,
            reserved_range_bytes=(peak, peak),
            step_time_overhead=cost,
            breach=None,
        )

    marked = mark_dominated([outcome(0.0, 9), outcome(0.1, 5), outcome(0.1, 5), outcome(0.2, 6)])
    assert [o.dominated for o in marked] == [False, False, True, True]


def test_a_job_without_a_batch_is_told_what_to_paste() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(small_job(**{"train.micro_batch_size": None}), "10GiB")
    assert "train.micro_batch_size" in caught.value.hint


# --- reasons


def why(answer: Plan) -> str:
    return "\n".join(answer.why)


def test_reasons_of_a_job_that_recomputes_for_nothing() -> None:
    job = h200_job(recompute_granularity="selective", recompute_modules=None)
    answer = plan(job, "100GiB")
    assert answer.status is Status.ALREADY_FITS
    assert "recompute_modules is not set, which Megatron reads as [core_attn]" in why(answer)
    assert answer.current == selective("core_attn")


def test_reasons_name_the_tensors_the_rank_and_the_phase() -> None:
    answer = plan(h200_job(), "20GiB")
    assert answer.status is Status.PLANNED
    text = why(answer)
    assert "pp 0, loss" in text
    assert "mlp.linear_fc1" in text
    assert "core_attn is worse than none here: the peak rises by 0.62 GiB" in text


def test_reasons_say_when_states_alone_do_not_fit() -> None:
    answer = plan(h200_job(), "11GiB")
    assert answer.status is Status.INFEASIBLE
    assert "parameters, gradients and states alone are" in why(answer)
    assert "nothing fits; the closest is" in why(answer)


def test_a_label_that_frees_next_to_nothing_is_rejected_with_the_reason() -> None:
    peaks = {NO_RECOMPUTE: 100 * GIB, selective("core_attn"): 100 * GIB - GIB // 64}
    predictor = FakePredictor(
        JOB,
        peak=lambda choice: peaks.get(choice, 50 * GIB),
        replay=lambda choice: 0 if choice == NO_RECOMPUTE else 10**13,
        active=ACTIVE,
    )
    answer = plan(JOB, 60 * GIB, predictor_of=lambda _: predictor)
    assert "core_attn lowers the peak by 16 MiB only" in why(answer)


def test_a_close_call_is_said() -> None:
    answer = plan(h200_job(), answer_peak(full("block", 2)) + 1)
    assert answer.chosen is not None
    assert answer.chosen.choice == full("block", 2)
    assert "close call" in why(answer)
    assert "to spare, less than the model's error" in why(answer)


def answer_peak(choice: RecomputeChoice) -> int:
    return Predictor(h200_job()).predict(choice).hot.peak.peak_bytes


# --- measured


def test_on_the_h200_rows_the_planned_choice_is_the_best_measured_one() -> None:
    """For every budget between the smallest and the largest measured peak of the first session."""
    rows = [row for row in ROWS if row["session"] == "first"]
    measured: dict[RecomputeChoice, float] = {}
    peaks: dict[RecomputeChoice, int] = {}
    for row in rows:
        choice = choice_of_row(row)
        times = (row["step_ms_median"], measured.get(choice, 1e9))
        measured[choice] = min(times)
        peaks[choice] = row["peak_over_static"]
    noise = 236.71 / 231.12 - 1  # one and the same work, three times
    static = Predictor(h200_job()).predict(NO_RECOMPUTE).hot.static.total
    for limit in sorted(set(peaks.values())):
        answer = plan(h200_job(), static + limit + GIB // 256)
        order = [o.choice for o in answer.alternatives if o.fits and o.choice in measured]
        best = min(time for choice, time in measured.items() if peaks[choice] <= limit)
        assert measured[order[0]] <= best * (1 + max(0.02, noise))


def test_examples_answer_the_same_twice() -> None:
    first, second = (plan(h200_job(), "18GiB", per_layer=True) for _ in range(2))
    assert first == second


def test_data_rows_are_there() -> None:
    assert len(json.loads((DATA / "h200_steps.json").read_text("utf-8"))["rows"]) == 22


@settings(max_examples=60, deadline=None)
@given(figures, st.integers(min_value=45, max_value=95))
def test_a_planned_choice_is_never_dominated(figures: list[tuple[int, int]], budget: int) -> None:
    answer = solve(made_up(figures), budget)
    if answer.status is Status.PLANNED:
        assert answer.chosen is not None
        assert not answer.chosen.dominated
        for other in answer.alternatives:
            as_fast = other.step_time_overhead <= answer.chosen.step_time_overhead
            assert not (as_fast and other.peak_bytes < answer.chosen.peak_bytes)


H200_PREDICTOR = Predictor(h200_job())


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=20 * GIB, max_value=60 * GIB))
def test_on_the_h200_job_no_other_choice_is_as_fast_with_a_lower_peak(budget: int) -> None:
    answer = plan(H200_PREDICTOR.job, budget, details=False, predictor_of=lambda _: H200_PREDICTOR)
    if answer.status is Status.PLANNED:
        assert answer.chosen is not None
        assert not answer.chosen.dominated


def test_layers_offloaded_whole_are_said_to_leave_no_other_choice() -> None:
    offloaded = small_job(cpu_offloading=True, cpu_offloading_num_layers=2)
    answer = plan(offloaded, 80 * GIB)
    assert answer.status is Status.ALREADY_FITS
    assert answer.chosen is not None
    assert answer.chosen.choice == NO_RECOMPUTE
    assert {one.choice for one in answer.alternatives} <= {NO_RECOMPUTE}
    assert any("model.cpu_offloading=false" in line for line in answer.why)
    assert not any("cpu_offloading" in line for line in plan(small_job(), 80 * GIB).why)
