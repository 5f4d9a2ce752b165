"""What stands all run long beside parameters and states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.schema import JobConfig
from recompute.timeline.predict import Predictor
from recompute.units import MIB

from .jobs import job

EXPERTS: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 512,
    "moe_token_dispatcher_type": "alltoall",
}


def other(given: JobConfig, pp: int = -1) -> int:
    return Predictor(given)._states[pp].static.other


def on(given: JobConfig, gpu: str, **environment: str) -> JobConfig:
    return replace(given, hardware=replace(given.hardware, gpu=gpu), environment=dict(environment))


def test_grouped_experts_bring_four_workspaces_and_sequential_ones_none() -> None:
    sequential = other(job(**EXPERTS, moe_grouped_gemm=False))
    assert other(job(**EXPERTS, moe_grouped_gemm=True)) - sequential == 4 * 32 * MIB
    alone = {**EXPERTS, "expert_model_parallel_size": 8}  # one expert a rank is a group as well
    grouped = other(job(**alone, moe_grouped_gemm=True))
    assert grouped - other(job(**alone, moe_grouped_gemm=False)) == 4 * 32 * MIB


@pytest.mark.parametrize(
    ("environment", "torch_bytes"),
    [({}, 8_519_680), ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, 32 * MIB)],
)
def test_an_a100_has_small_workspaces_unless_pytorch_is_told_otherwise(
    environment: dict[str, str], torch_bytes: int
) -> None:
    dense = job()
    hopper, ampere = other(on(dense, "h100-80gb")), other(on(dense, "A100-80GB", **environment))
    assert hopper - ampere == 3 * 32 * MIB - (2 * torch_bytes + 4 * MIB)


def test_the_local_attention_keeps_a_buffer_of_its_scores() -> None:
    engine, local = job(), job(transformer_impl="local")
    model = local.model
    scores = 2 * local.micro_batch_size * model.num_attention_heads * local.seq_length**2
    assert other(local) - other(engine) == scores - 32 * MIB


def test_the_output_layer_gathers_into_a_buffer_that_stays() -> None:
    shape: dict[str, Any] = {"tensor_model_parallel_size": 2, "num_query_groups": 8}
    apart = job(**shape, sequence_parallel=False)
    together = job(**shape, sequence_parallel=True)
    tokens = together.seq_length * together.micro_batch_size
    assert other(together) - other(apart) == 2 * tokens * together.model.hidden_size


def test_a_chunk_holds_its_last_input_and_the_inputs_gradient() -> None:
    two = job(pipeline_model_parallel_size=2)
    stream = 2 * two.seq_length * two.micro_batch_size * two.model.hidden_size
    first, last = Predictor(two).predict(NO_RECOMPUTE).ranks
    assert last.static.other - other(two) == 2 * stream
    assert first.static.other == other(two, 0)
