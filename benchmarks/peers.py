"""What others would have said of the same rows.

Megatron-LM's formula is computed here from its published form (Korthikanti et al., arXiv:2205.05198,
table 2, as NVIDIA/Megatron-LM core_v0.19.0 megatron/training/theoretical_memory_utils.py reports it):
states of 18 bytes a parameter, 6 + 12/d with the distributed optimizer; activations of the first
stage under sequence parallelism and selective recompute, which it prints whatever the job recomputes.
SimuMax's figures are its own published predictions (MooreThreads/SimuMax 4dcaae51,
docs/b200/b200_release_v1.2_summary.json).
"""

from __future__ import annotations

from typing import Final

from recompute.config.schema import JobConfig
from recompute.model.shape import padded_vocab
from recompute.timeline.static import is_distributed, microbatches_of, parallelism_of
from recompute.units import GIB

SIMUMAX: Final = {
    "b200-llama3_70b_l12_tp1_pp2_dp4-pp0": 66.4383,
    "b200-llama3_70b_l12_tp1_pp2_dp4-pp1": 62.8398,
    "b200-llama3_70b_tp2_pp1_dp4_l12": 60.5134,
    "b200-llama3_70b_l12_tp4_pp1_dp2": 38.9422,
    "b200-llama3_70b_l12_tp8_pp1_dp1": 28.1663,
    "b200-deepseekv2_tp1_ep8_pp1_dp8_l4": 45.4024,
    "b200-llama3_405b_l4_tp1_pp2_dp4-pp0": 86.4302,
    "b200-llama3_405b_l4_tp1_pp2_dp4-pp1": 86.8835,
    "b200-llama3_405b_l4_tp2_pp1_dp4": 81.3128,
    "b200-llama3_405b_l4_tp2_cp4_pp1_dp1_seq32768": 86.554,
    "b200-llama3_405b_l4_tp1_cp8_pp1_dp1_seq32768": 139.128,
    "b200-llama3_70b_l12_tp1_cp8_pp1_dp1_seq131072": 147.8862,
    "b200-llama3_405b_l4_tp2_cp4_pp1_dp1_seq131072": 116.5012,
}
"""Row -> predicted peak, GiB."""


def formula(job: JobConfig) -> tuple[int, int]:
    """Return static and activation bytes as Megatron-LM's formula gives them."""
    return _states(job), _activations(job)


def _states(job: JobConfig) -> int:
    model = job.model
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = (model.kv_channels or hidden // heads) * heads / hidden
    groups = (model.num_query_groups or heads) / heads
    gated = 1.5 if model.gated_linear_unit else 1.0
    experts = model.num_moe_experts or 1
    ffn = model.ffn_hidden_size or 4 * hidden
    if model.num_moe_experts is not None:
        ffn = model.moe_ffn_hidden_size or ffn
    block = (1 + groups) * query + ffn / hidden * experts * gated + 2 / hidden
    layers = 2 * model.num_layers * hidden * hidden * block
    tables = hidden * padded_vocab(model)
    tied = model.share_embeddings_and_output_weights
    stages, shards = model.pipeline_model_parallel_size, model.tensor_model_parallel_size
    ends = tables if tied or stages > 1 else 2 * tables
    each = 6 + 12 / parallelism_of(job).data if is_distributed(job) else 18
    return int((layers / stages + ends) / shards * each)


def _activations(job: JobConfig) -> int:
    model = job.model
    tokens = job.seq_length * job.micro_batch_size
    hidden, stages = model.hidden_size, model.pipeline_model_parallel_size
    ratio = (model.ffn_hidden_size or 4 * hidden) / hidden
    layers = tokens * hidden * (18 + 4 * ratio) * model.num_layers
    total = layers + 8 * tokens * stages + tokens * hidden * stages
    chunks = model.virtual_pipeline_model_parallel_size
    if chunks is not None:
        total *= 1 + (stages - 1) / (stages * chunks)
    else:
        total *= min(1.0, microbatches_of(job) / stages)
    if stages == 1:
        total += 4 * tokens * hidden * (1 + padded_vocab(model) / hidden)
    return int(total / model.tensor_model_parallel_size)


def simumax(row: str) -> int | None:
    """Return SimuMax's published peak of a row, bytes."""
    found = SIMUMAX.get(row)
    return None if not found else int(found * GIB)
