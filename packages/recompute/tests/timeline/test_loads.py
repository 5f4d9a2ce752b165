"""Ranges where routing may be uneven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recompute.config.choice import NO_RECOMPUTE
from recompute.timeline.loads import HIGH_LOAD, USUAL_LOAD
from recompute.timeline.predict import Predictor

from .jobs import job

EXPERTS: dict[str, Any] = {
    "num_moe_experts": 64,
    "moe_router_topk": 6,
    "moe_ffn_hidden_size": 1408,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 8,
}


def test_a_range_reaches_to_the_hot_rank_of_public_runs() -> None:
    given = job(**EXPERTS)
    shown = Predictor(given).predict(NO_RECOMPUTE, composition=True).hot
    hot = Predictor(given, expert_load=HIGH_LOAD).predict(NO_RECOMPUTE).hot
    usual = Predictor(given, expert_load=USUAL_LOAD).predict(NO_RECOMPUTE).hot
    low, high = shown.peak_range_bytes
    assert low < shown.peak.peak_bytes < usual.peak.peak_bytes < hot.peak.peak_bytes < high
    assert high == hot.peak_range_bytes[1]


def test_the_answer_names_both_loads() -> None:
    said = {a.id: a.text for a in Predictor(job(**EXPERTS)).predict(NO_RECOMPUTE).assumptions}
    assert f"{USUAL_LOAD:g} times" in said["expert-load"]
    assert f"{HIGH_LOAD:g}" in said["expert-load"]


def test_where_every_rank_gets_its_share_the_range_is_the_models_own() -> None:
    for fields in (
        {**EXPERTS, "moe_router_force_load_balancing": True},
        {**EXPERTS, "expert_model_parallel_size": 1},
        {},
    ):
        predictor = Predictor(job(**fields))
        shown = predictor.predict(NO_RECOMPUTE, composition=True).hot
        assert shown.peak_range_bytes == predictor.predict(NO_RECOMPUTE).hot.peak_range_bytes


def test_a_given_load_is_taken_as_it_is() -> None:
    predictor = Predictor(job(**EXPERTS), expert_load=1.5)
    shown = predictor.predict(NO_RECOMPUTE, composition=True).hot
    assert shown.peak_range_bytes == predictor.predict(NO_RECOMPUTE).hot.peak_range_bytes
    assert replace(shown, alive_at_peak=()) == predictor.predict(NO_RECOMPUTE).hot
