"""Step times from the user's own run, and close calls that hang on uneven routing."""

from __future__ import annotations

from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice, selective
from recompute.config.normalize import normalize
from recompute.search.plan import Plan, plan
from recompute.timeline.calibrate import Calibrated, Measured, calibration_of
from recompute.timeline.loads import HIGH_LOAD
from recompute.timeline.predict import Predictor
from recompute.units import GIB

from .fakes import small_job

JOB = small_job(**{"hardware.gpu": "h200"})
EXPERTS: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_grouped_gemm": True,
    "moe_ffn_hidden_size": 4096,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 4,
    "hardware.num_gpus": 4,
    "hardware.gpu": "h200",
}


def planned(seconds: dict[RecomputeChoice, float], budget: int) -> Plan:
    predictor = Predictor(normalize(JOB))
    measured = [
        Measured(
            choice=choice,
            rank=0,
            static_bytes=None,
            peak_bytes=predictor.predict(choice).hot.peak.peak_bytes,
            step_seconds=step,
        )
        for choice, step in seconds.items()
    ]
    calibration = calibration_of(predictor, measured, "run")
    return plan(JOB, budget, predictor_of=lambda job: Calibrated(Predictor(job), calibration))


def overheads(answer: Plan) -> dict[RecomputeChoice, float]:
    return {o.choice: o.step_time_overhead for o in answer.alternatives}


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_step_times_are_those_of_the_run_and_overheads_keep_their_ratios(factor: float) -> None:
    budget = 9 * GIB
    plain = plan(JOB, budget)
    answer = planned({NO_RECOMPUTE: plain.control_seconds * factor}, budget)
    assert answer.control_seconds == pytest.approx(plain.control_seconds * factor)
    assert overheads(answer) == pytest.approx(overheads(plain), abs=1e-8)
    assert plain.tokens_per_second is not None
    assert answer.tokens_per_second == pytest.approx(plain.tokens_per_second / factor)
    for lever, before in zip(answer.cheaper_first, plain.cheaper_first, strict=True):
        assert (lever.then is None) is (before.then is None)
        if lever.then is not None and before.then is not None:
            cost = before.then.step_time_overhead
            assert lever.then.step_time_overhead == pytest.approx(cost, abs=1e-8)
    assert any(f"{factor:.2f} times" in a.text for a in answer.assumptions)


def test_the_run_may_have_recomputed_something() -> None:
    plain = plan(JOB, 9 * GIB)
    slower = 1 + overheads(plain)[selective("mlp")]
    answer = planned({selective("mlp"): 2 * plain.control_seconds * slower}, 9 * GIB)
    assert answer.control_seconds == pytest.approx(2 * plain.control_seconds)


def test_a_run_without_times_leaves_them() -> None:
    predictor = Predictor(normalize(JOB))
    peak = predictor.predict(NO_RECOMPUTE).hot.peak.peak_bytes
    measured = Measured(choice=NO_RECOMPUTE, rank=0, static_bytes=None, peak_bytes=peak)
    calibration = calibration_of(predictor, [measured], "run")
    answer = plan(JOB, 9 * GIB, predictor_of=lambda job: Calibrated(Predictor(job), calibration))
    assert answer.control_seconds == plan(JOB, 9 * GIB).control_seconds
    assert not any(a.id == "step-calibration" for a in answer.assumptions)


def test_a_plan_that_uneven_routing_would_break_is_a_close_call() -> None:
    job = small_job(**EXPERTS)
    even = Predictor(normalize(job)).predict(NO_RECOMPUTE, composition=True).hot
    said = f"with {HIGH_LOAD:g} times its share"
    assert even.peak_range_bytes[1] > even.peak.peak_bytes * 1.05
    tight = plan(job, even.peak_range_bytes[1] - 1)
    assert tight.chosen is not None
    assert tight.chosen.choice == NO_RECOMPUTE
    assert any(said in line for line in tight.why)
    assert not any(said in line for line in plan(job, even.peak_range_bytes[1] + 1).why)
