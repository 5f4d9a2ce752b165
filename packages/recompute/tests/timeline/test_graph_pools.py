"""Private pools of CUDA graphs: a bound on what they reserve, never part of the allocated peak."""

from __future__ import annotations

from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.schema import JobConfig
from recompute.search.budget import budget_of
from recompute.search.reserved import CACHING
from recompute.timeline.graph_pools import GraphPools
from recompute.timeline.predict import Predictor

from .jobs import megatron_job

TE = {"cuda_graph_impl": "transformer_engine"}
MOE: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
}


def pools(job: JobConfig) -> int:
    return Predictor(job).predict(NO_RECOMPUTE).graph_pool_bytes


def test_graphs_move_no_allocated_byte_and_reserve_more() -> None:
    eager, captured = (Predictor(megatron_job(**f)).predict(NO_RECOMPUTE) for f in ({}, TE))
    assert eager.hot.phases == captured.hot.phases
    assert eager.graph_pool_bytes == 0 < captured.graph_pool_bytes


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_cuda_graph": True},
        {"external_cuda_graph": True},
        {"cuda_graph_impl": "local"},
        {**TE, "cuda_graph_modules": ("attn", "mlp")},
    ],
)
def test_every_way_to_ask_for_graphs_counts(fields: dict[str, Any]) -> None:
    assert pools(megatron_job(**fields)) > 0


def test_a_captured_part_needs_no_more_than_the_whole_layer() -> None:
    whole = pools(megatron_job(**MOE, **TE))
    attention = pools(megatron_job(**MOE, **TE, cuda_graph_modules=("attn",)))
    router = pools(megatron_job(**MOE, **TE, cuda_graph_modules=("moe_router",)))
    assert 0 < attention < whole
    assert 0 < router < whole
    assert pools(megatron_job(**MOE, **TE, cuda_graph_modules=("mlp",))) == 0, "no dense MLP"


def test_one_pool_for_the_whole_iteration_needs_no_second_working_set() -> None:
    assert pools(megatron_job(cuda_graph_impl="full_iteration")) < pools(megatron_job(**TE))


def test_what_graphs_saved_stays_in_the_optimizer_step() -> None:
    """The step runs beside the pool: only where it is the peak does what was saved come on top."""
    made = Predictor(megatron_job(**TE))
    (stage,) = made.stages
    bound = GraphPools(made.job, made._book).beyond
    high = 1 << 45
    working = bound(stage, ((1,),), high, 0)
    saved = 8 * made._book.profile("attention+mlp", frozenset()).saved
    assert working > 0
    assert bound(stage, ((1,),), 0, high) == saved + working
    assert bound(stage, ((3,),), 0, high) == 3 * saved + working
    assert bound(stage, ((1,),), high, high - saved // 2) == saved - saved // 2 + working


def test_pools_count_against_a_device_and_not_against_a_stated_budget() -> None:
    job = megatron_job(**TE)
    device, stated = budget_of(job, gpu="h200"), budget_of(job, "76GiB")
    assert device.over(10**9, CACHING, 7) == device.over(10**9, CACHING) + 7
    assert stated.over(10**9, CACHING, 7) == stated.over(10**9, CACHING)
    assert device.over(device.allowed_peak(CACHING, 10**9), CACHING, 10**9) <= 0
