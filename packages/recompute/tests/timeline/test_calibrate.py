"""Corrections from the user's own run, and uneven experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.config.choice import NO_RECOMPUTE, selective
from recompute.errors import ConfigError
from recompute.timeline.calibrate import (
    Calibrated,
    Calibration,
    Correction,
    Measured,
    calibration_of,
)
from recompute.timeline.hot_experts import HotExperts
from recompute.timeline.predict import Predictor
from recompute.units import MIB

from .jobs import megatron_job

EXPERTS: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
}


@settings(max_examples=25, deadline=None)
@given(extra=st.integers(-100 * MIB, 4096 * MIB), factor=st.floats(0.6, 1.9))
def test_a_run_that_differs_by_a_sum_and_a_factor_is_reproduced(extra: int, factor: float) -> None:
    """Calibrating by a synthetic run gives that run back, and moves the others alike."""
    plain = Predictor(megatron_job())
    truth = Calibrated(
        plain,
        Calibration(
            source="truth",
            by_rank={0: Correction(static_bytes=extra, activation_factor=factor)},
        ),
    )
    row = truth.predict(NO_RECOMPUTE).hot
    measured = Measured(
        choice=NO_RECOMPUTE,
        rank=0,
        static_bytes=row.static.total,
        peak_bytes=max(p.peak_bytes for p in row.phases),
    )
    found = Calibrated(plain, calibration_of(plain, [measured], "run"))
    for choice in (NO_RECOMPUTE, selective("mlp"), selective("core_attn")):
        wanted, given_ = truth.predict(choice).hot, found.predict(choice).hot
        assert given_.peak.peak_bytes == pytest.approx(wanted.peak.peak_bytes, rel=1e-6)
        assert given_.static == wanted.static
        low, high = given_.peak_range_bytes
        assert low <= given_.peak.peak_bytes <= high


def test_the_correction_is_said_and_unmeasured_ranks_take_the_mean() -> None:
    predictor = Predictor(megatron_job(gpus=4, batch=16, pipeline_model_parallel_size=4))
    rows = predictor.predict(NO_RECOMPUTE).ranks
    measured = [
        Measured(
            choice=NO_RECOMPUTE,
            rank=row.global_ranks[0],
            static_bytes=row.static.total + add,
            peak_bytes=row.peak.peak_bytes + add,
        )
        for row, add in ((rows[0], 100 * MIB), (rows[3], 300 * MIB))
    ]
    answer = Calibrated(predictor, calibration_of(predictor, measured, "log")).predict(NO_RECOMPUTE)
    added = [
        new.static.other - old.static.other for new, old in zip(answer.ranks, rows, strict=True)
    ]
    assert added == [100 * MIB, 200 * MIB, 200 * MIB, 300 * MIB]
    (said,) = [a.text for a in answer.assumptions if a.id == "calibration"]
    assert "pp 0: static +0.10 GiB, activations x 1.000" in said
    assert "2 ranks that were not measured take the mean" in said


def test_a_peak_in_the_optimizer_step_says_nothing_about_activations() -> None:
    predictor = Predictor(
        megatron_job(seq_length=128, num_layers=2),
    )
    job = replace(predictor.job, ddp=replace(predictor.job.ddp, grad_reduce_in_fp32=False))  # type: ignore[type-var]
    narrow = Predictor(job)
    row = narrow.predict(NO_RECOMPUTE).hot
    assert row.peak.phase.value.startswith("optimizer")
    measured = Measured(
        choice=NO_RECOMPUTE, rank=0, static_bytes=None, peak_bytes=row.peak.peak_bytes + MIB
    )
    assert calibration_of(narrow, [measured], "log").of(0).activation_factor == 1.0


@pytest.mark.parametrize("off", [(-50, 0), (0, 200)])
def test_another_jobs_run_is_refused(off: tuple[int, int]) -> None:
    predictor = Predictor(megatron_job())
    row = predictor.predict(NO_RECOMPUTE).hot
    static, activations = (size << 30 for size in off)
    measured = Measured(
        choice=NO_RECOMPUTE,
        rank=0,
        static_bytes=row.static.total + static,
        peak_bytes=row.peak.peak_bytes + static + activations,
    )
    with pytest.raises(ConfigError, match="does not fit this job") as caught:
        calibration_of(predictor, [measured], "log")
    assert caught.value.code == "calibration-mismatch"


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        calibration_of(Predictor(megatron_job()), [], "log")
    assert caught.value.code == "nothing-measured"


def test_a_hot_rank_reaches_from_balanced_upwards() -> None:
    job = megatron_job(gpus=8, batch=16, expert_model_parallel_size=8, **EXPERTS)
    even = Predictor(job).predict(NO_RECOMPUTE).hot
    hot = HotExperts(job, 3.0).predict(NO_RECOMPUTE).hot
    assert hot.peak.peak_bytes > even.peak.peak_bytes
    assert hot.peak_range_bytes[0] == even.peak_range_bytes[0]
    assert hot.peak_range_bytes[1] > hot.peak.peak_bytes
    assert HotExperts(job, 1.0).predict(NO_RECOMPUTE).hot == even
