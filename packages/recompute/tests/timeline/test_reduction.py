"""Gradient buffers beside Megatron's: FP32 accumulation, and the exchanged copies of an FP32 reduction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.load import load
from recompute.config.schema import DdpConfig, FrameworkConfig, JobConfig
from recompute.timeline.predict import Predictor
from recompute.timeline.static import ParameterCount, StateBytes, state_bytes
from recompute.timeline.types import Phase

from .jobs import megatron_job

DENSE, EXPERT = 800_000_000, 80_000_000
COUNT = ParameterCount(dense=DENSE, expert=EXPERT)


def job_of(core: str = "0.19", **ddp: Any) -> JobConfig:
    wrapper = DdpConfig(use_distributed_optimizer=True, **ddp)
    framework = FrameworkConfig(megatron_core=core)
    return replace(megatron_job(gpus=8, batch=32), ddp=wrapper, framework=framework)


def states(core: str = "0.19", **ddp: Any) -> StateBytes:
    return state_bytes(job_of(core, **ddp), COUNT)


def test_accumulating_everything_in_fp32_keeps_both_buffers_and_copies_none_for_the_step() -> None:
    plain = states()
    local = states(param_name_patterns_for_fp32_local_accumulation=("all",))
    wide = states(grad_reduce_in_fp32=True)
    assert plain.static.gradients == 2 * COUNT.total
    assert wide.static.gradients == 4 * COUNT.total
    assert local.static.gradients == 6 * COUNT.total
    assert plain.step_transient > local.step_transient == 0


def test_core_0_16_has_no_local_accumulation() -> None:
    patterns = ("all",)
    old = states("0.16", param_name_patterns_for_fp32_local_accumulation=patterns)
    assert old.static.gradients == 2 * COUNT.total


@pytest.mark.parametrize("core", ["0.16", "0.17", "0.18", "0.19"])
@pytest.mark.parametrize("element", [2, 4])
def test_without_overlap_one_bucket_is_exchanged_at_once(core: str, element: int) -> None:
    made = states(
        core, reduce_scatter_with_fp32_accumulation=True, grad_reduce_in_fp32=element == 4
    ).reduction
    assert made.at_sync == DENSE * element + DENSE // 8 * 4
    assert made.in_backward == 0


@pytest.mark.parametrize("core", ["0.16", "0.17"])
def test_up_to_core_0_17_every_bucket_waits_for_the_end(core: str) -> None:
    made = states(
        core, reduce_scatter_with_fp32_accumulation=True, overlap_grad_reduce=True
    ).reduction
    assert made.in_backward == made.at_sync == 2 * (DENSE + EXPERT) + 40_000_000 // 8 * 4


@pytest.mark.parametrize(("given", "bucket"), [(None, 40_000_000), (10_000_000, 10_000_000)])
def test_from_core_0_18_on_one_bucket_is_in_flight(given: int | None, bucket: int) -> None:
    made = states(
        "0.18",
        reduce_scatter_with_fp32_accumulation=True,
        overlap_grad_reduce=True,
        bucket_size=given,
    ).reduction
    assert made.in_backward == made.at_sync == 2 * bucket + bucket // 8 * 4


def test_the_exchange_is_in_the_gradient_sync_and_the_range() -> None:
    plain, late, early = (
        Predictor(job).predict(NO_RECOMPUTE).hot
        for job in (
            job_of(),
            job_of(reduce_scatter_with_fp32_accumulation=True),
            job_of(reduce_scatter_with_fp32_accumulation=True, overlap_grad_reduce=True),
        )
    )
    sync = [
        next(p.peak_bytes for p in row.phases if p.phase is Phase.GRAD_SYNC)
        for row in (plain, late, early)
    ]
    assert sync[0] < sync[2] < sync[1]
    assert plain.peak_range_bytes == late.peak_range_bytes
    assert early.peak.peak_bytes == plain.peak.peak_bytes
    assert early.peak_range_bytes[1] - plain.peak_range_bytes[1] == 100_000_000


def test_megatron_lm_flags_are_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --bf16 "
        "--vocab-size 256 --use-distributed-optimizer --grad-reduce-in-bf16 "
        "--ddp-reduce-scatter-with-fp32-accumulation "
        "--ddp-param-name-patterns-for-fp32-local-accumulation all\n"
    )
    ddp = load(str(script)).ddp
    assert ddp is not None
    assert ddp.reduce_scatter_with_fp32_accumulation
    assert ddp.param_name_patterns_for_fp32_local_accumulation == ("all",)
