from __future__ import annotations

from dataclasses import replace

import pytest

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.revision import Revision
from recompute.config.schema import JobConfig
from recompute.rules.check import check
from recompute.rules.edits import apply
from recompute.search.lever_edits import Before
from recompute.search.levers import LEVERS, Lever
from recompute.search.plan import plan
from recompute.search.types import LeverResult
from recompute.timeline.predict import Predictor

from ..timeline.jobs import job as h200_job
from .fakes import GIB, small_job


def edit(lever: Lever, job: JobConfig) -> object:
    return lever.edit(Before(job, Predictor(job).predict(NO_RECOMPUTE)))


def results(job: JobConfig, budget: int = 100 * GIB) -> dict[str, LeverResult]:
    return {result.name: result for result in plan(job, budget).cheaper_first}


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_each_lever_applies_to_its_good_example_and_not_to_its_bad_one(lever: Lever) -> None:
    good, bad = small_job(**lever.good), small_job(**lever.bad)
    changed = edit(lever, good)
    assert changed
    assert edit(lever, bad) is None
    assert edit(lever, apply(good, changed)) is None, "a lever that was pulled is not offered again"


def test_names_are_unique() -> None:
    names = [lever.name for lever in LEVERS]
    assert len(set(names)) == len(names)


def test_deltas_are_those_of_predicting_the_changed_job() -> None:
    job = h200_job()
    found = results(job)
    fused = replace(job, model=replace(job.model, bias_activation_fusion=True))
    before, after = (
        Predictor(one).predict(NO_RECOMPUTE).hot.peak.peak_bytes for one in (job, fused)
    )
    assert found["fused-activation"].peak_delta_bytes == after - before
    assert found["fused-activation"].overrides == ("model.bias_activation_fusion=true",)


@pytest.mark.parametrize(
    ("entry_point", "core", "offered"),
    [
        ("megatron-lm", "0.18.0", True),
        ("megatron-lm", "0.18.2", False),
        ("megatron-lm", "0.19.0", False),
        ("megatron-lm", None, False),
        ("bridge", "0.19.0", True),
    ],
)
def test_a_fused_loss_that_megatron_lm_refuses_is_not_offered(
    entry_point: str, core: str | None, offered: bool
) -> None:
    job = small_job()
    job = replace(
        job,
        identity=replace(job.identity, entry_point=entry_point),
        framework=replace(job.framework, megatron_core=core),
    )
    (lever,) = (one for one in LEVERS if one.name == "fused-cross-entropy")
    assert (edit(lever, job) is not None) is offered


def test_jobs_without_megatrons_optimizer_are_not_offered_its_options() -> None:
    names = set(results(h200_job()))
    assert not names & {"precision-aware-optimizer", "bf16-moments", "offload-optimizer"}
    assert "smaller-micro-batch" in names


def test_expandable_segments_change_reserved_bytes_only() -> None:
    found = results(h200_job())["expandable-segments"]
    assert found.peak_delta_bytes == 0
    assert found.overrides == ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)


def test_expandable_segments_keep_what_is_set() -> None:
    job = small_job(**{"environment.PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    (override,) = results(job)["expandable-segments"].overrides
    assert override.endswith("max_split_size_mb:64,expandable_segments:True")


def test_a_lever_that_is_enough_alone_says_so() -> None:
    job = h200_job()
    control = Predictor(job).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    found = results(job, control - GIB)
    assert found["smaller-micro-batch"].fits
    assert found["fused-activation"].fits
    assert not found["fused-cross-entropy"].fits


def test_levers_that_do_not_help_are_left_out() -> None:
    for result in results(small_job(**{"ddp.grad_reduce_in_fp32": True})).values():
        assert result.peak_delta_bytes < 0 or result.name == "expandable-segments"


def test_an_uneven_split_takes_layers_from_the_hot_end_only_where_the_rest_divides() -> None:
    lever = next(lever for lever in LEVERS if lever.name == "uneven-pipeline")
    for stages, layers in ((2, 4), (3, 9), (4, 16)):
        job = small_job(
            pipeline_model_parallel_size=stages,
            num_layers=layers,
            **{"hardware.num_gpus": stages, "train.global_batch_size": 16},
        )
        changed = edit(lever, job)
        if changed is None:
            continue
        assert isinstance(changed, dict)
        ((name, count),) = changed.items()
        assert name.startswith("model.num_layers_in_")
        assert 0 < count < layers // stages
        assert (layers - count) % (stages - 1) == 0
        Predictor(apply(job, changed))


def test_a_lever_that_is_not_enough_says_what_is_left_to_recompute() -> None:
    job = h200_job()
    control = Predictor(job).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    answer = plan(job, control - 5 * GIB)
    found = {result.name: result for result in answer.cheaper_first}
    left = found["fused-activation"].then
    assert left is not None
    assert left.fits
    assert answer.chosen is not None
    assert 0 < left.step_time_overhead < answer.chosen.step_time_overhead


def test_the_distributed_optimizer_is_offered_where_data_parallel_ranks_hold_the_same_states() -> (
    None
):
    tensor_only = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    for gpus, data in ((8, 4), (2, 1)):
        job = small_job(**tensor_only, **{"hardware.num_gpus": gpus, "train.global_batch_size": 8})
        found = results(job).get("distributed-optimizer")
        assert (found is not None) == (data > 1)
    job = small_job(**tensor_only, **{"hardware.num_gpus": 8, "train.global_batch_size": 8})
    found = results(job)["distributed-optimizer"]
    assert found.overrides == (
        "ddp.use_distributed_optimizer=true",
        "optimizer.use_distributed_optimizer=true",
    )
    static = Predictor(job).predict(NO_RECOMPUTE).hot.static
    assert found.peak_delta_bytes <= -static.optimizer * 0.7, "three quarters of the states leave"


def test_an_infeasible_answer_offers_the_distributed_optimizer_before_changed_numerics() -> None:
    job = small_job(**{"hardware.num_gpus": 4})
    answer = plan(job, GIB // 8)
    assert answer.chosen is None
    assert "distributed-optimizer" in [lever.name for lever in answer.cheaper_first]
    assert any("distributed optimizer" in line for line in answer.why)
    names = [lever.name for lever in LEVERS]
    assert names.index("distributed-optimizer") < names.index("bf16-moments")


def test_per_layer_plans_try_levers_with_the_same_stock_choices() -> None:
    job = h200_job()
    control = Predictor(job).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    mixed = plan(job, control - 8 * GIB, per_layer=True)
    assert mixed.chosen is not None
    assert mixed.chosen.choice.per_layer is not None
    assert mixed.cheaper_first == plan(job, control - 8 * GIB).cheaper_first


def test_replanning_with_any_lever_gives_the_peak_that_the_table_promised() -> None:
    changes = {"hardware.num_gpus": 4, "ddp.use_distributed_optimizer": True}
    job = small_job(**changes, **{"optimizer.use_distributed_optimizer": True})
    before = Predictor(job).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    promised = results(job)
    assert "offload-optimizer" in promised
    for lever in LEVERS:
        if lever.name in promised:
            changed = apply(job, edit(lever, job))  # type: ignore[arg-type]
            after = Predictor(changed).predict(NO_RECOMPUTE).hot.peak.peak_bytes
            assert after - before == promised[lever.name].peak_delta_bytes


AWARE = {
    "ddp.use_distributed_optimizer": True,
    "optimizer.use_distributed_optimizer": True,
    "optimizer.use_precision_aware_optimizer": True,
    "optimizer.main_grads_dtype": "bf16",
    "optimizer.fp8_recipe": "tensorwise",
}


def test_masters_that_core_keeps_for_an_unused_recipe_are_given_back() -> None:
    job = small_job(**AWARE)
    found = results(job)["engine-masters"]
    static = Predictor(job).predict(NO_RECOMPUTE).hot.static
    assert found.overrides == ("optimizer.fp8_recipe=delayed",)
    assert found.peak_delta_bytes <= -static.optimizer * 2 // 12
    quantized = small_job(**AWARE, **{"model.fp8": "hybrid", "model.fp8_recipe": "tensorwise"})
    assert "engine-masters" not in results(quantized)
    sharded = small_job(**AWARE, **{"ddp.use_megatron_fsdp": True})
    assert "engine-masters" not in results(sharded)


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ({}, True),
        ({"optimizer.use_precision_aware_optimizer": False}, False),
        ({"optimizer.fp8_recipe": "delayed"}, False),
        ({"optimizer.fp8_recipe": None}, False),
        ({"model.fp8": "hybrid", "model.fp8_recipe": "tensorwise"}, False),
        ({"model.fp4": "e2m1"}, False),
        ({"ddp.use_megatron_fsdp": True}, False),
        ({"optimizer.main_params_dtype": "fp16"}, False),
        ({"optimizer.optimizer_cpu_offload": True}, False),
    ],
)
def test_the_lever_applies_just_where_the_rule_on_masters_reports(
    changes: dict[str, object], *, offered: bool
) -> None:
    job = small_job(**{**AWARE, **changes})
    (lever,) = (one for one in LEVERS if one.name == "engine-masters")
    said = {finding.rule for finding in check(job, Revision("0.19"), fixes=False)}
    assert (edit(lever, job) is not None, "masters-kept-twice" in said) == (offered, offered)


def test_a_job_without_ddp_or_optimizer_keeps_no_masters_twice() -> None:
    job = small_job(**AWARE)
    assert replace(job, ddp=None).masters_kept_twice
    assert not replace(job, optimizer=None).masters_kept_twice


def test_what_mixed_precision_overwrites_is_changed_there() -> None:
    job = replace(
        small_job(**AWARE, **{"ddp.grad_reduce_in_fp32": True}),
        mixed_precision={"bf16": True, "grad_reduce_in_fp32": True},
    )
    found = results(job)
    assert found["engine-masters"].overrides == ("mixed_precision.fp8_recipe=delayed",)
    assert found["bf16-gradients"].overrides == ("mixed_precision.grad_reduce_in_fp32=false",)
    assert found["offload-optimizer"].overrides[0] == "optimizer.optimizer_cpu_offload=true"
