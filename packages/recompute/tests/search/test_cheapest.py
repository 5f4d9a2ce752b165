"""Pricing before predicting gives what ranking everything gives."""

from __future__ import annotations

import math
from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.gpus import find_gpu
from recompute.config.normalize import normalize, revision_of
from recompute.config.schema import JobConfig
from recompute.search.budget import budget_of
from recompute.search.cheapest import cheapest
from recompute.search.cost import CostModel
from recompute.search.outcome import Judge, ranked
from recompute.search.space import candidates, every_choice, is_legal, known_errors
from recompute.timeline.predict import Predictor

from .fakes import FakePredictor, small_job

MOE: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_grouped_gemm": True,
    "moe_ffn_hidden_size": 1024,
    "moe_layer_freq": (0, 1, 1, 1),
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 2,
    "multi_latent_attention": True,
    "hardware.num_gpus": 4,
    "pipeline_model_parallel_size": 2,
}
JOBS = {
    "dense": small_job(),
    "pipeline": small_job(pipeline_model_parallel_size=2, **{"hardware.num_gpus": 2}),
    "experts": small_job(**MOE),
    "local": small_job(transformer_impl="local"),
}


def judge_of(job: JobConfig, budget: int) -> Judge:
    predictor = Predictor(normalize(job))
    control = predictor.predict(NO_RECOMPUTE)
    cost = CostModel(normalize(job), find_gpu("h200"))
    return Judge(predictor, cost, budget_of(job, budget), control)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_the_cheapest_is_the_first_that_fits_of_all_ranked(name: str) -> None:
    job = JOBS[name]
    revision, _ = revision_of(job)
    known = known_errors(job, revision)
    whole = judge_of(job, 1 << 45)
    active = whole.predictor.active_layers()
    space = [c for c in candidates(job, revision, active) if c != NO_RECOMPUTE]
    peaks = sorted({whole.outcome(choice).peak_bytes for choice in space})
    for budget in (peaks[0] - 1, *peaks):
        judge = judge_of(job, budget)
        ordered = [o for o in ranked(judge.outcome(c) for c in space) if o.fits]
        found = cheapest(
            judge,
            every_choice(job, active),
            lambda choice: is_legal(job, choice, revision, known),
            below=math.inf,
        )
        assert found == (ordered[0] if ordered else None)
        if found is not None:
            limit = found.step_time_overhead
            assert cheapest(judge, space, lambda _: True, below=limit) is None


@pytest.mark.parametrize("name", sorted(JOBS))
def test_what_a_choice_replays_needs_no_bytes(name: str) -> None:
    job = JOBS[name]
    predictor = Predictor(normalize(job))
    for choice in every_choice(job, predictor.active_layers()):
        rows = predictor.predict(choice).ranks
        assert predictor.replays(choice) == tuple(row.replay for row in rows)


def test_a_predictor_that_cannot_price_is_asked_for_predictions() -> None:
    fake = FakePredictor(
        job=small_job(),
        peak=lambda choice: 100 - 10 * len(choice.recompute_modules),
        replay=lambda choice: 10**12 * len(choice.recompute_modules),
        active={"core_attn": 4, "mlp": 4},
    )
    control = fake.predict(NO_RECOMPUTE)
    judge = Judge(fake, CostModel(fake.job, find_gpu("h200")), budget_of(fake.job, 90), control)
    found = cheapest(judge, every_choice(fake.job, fake.active), lambda _: True, below=math.inf)
    assert found is not None
    assert found.choice.label() == "[core_attn]"
