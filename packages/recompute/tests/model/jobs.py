"""Jobs that the model's tests share, one per layer kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recompute.config.schema import JobConfig, JobIdentity, ModelConfig, TrainConfig
from recompute.model.run import GradPolicy

GRADS = GradPolicy(appear_in_backward=True, fused=False)
SMALL = ModelConfig(
    num_layers=4,
    hidden_size=1024,
    num_attention_heads=8,
    num_query_groups=4,
    ffn_hidden_size=3072,
    vocab_size=4096,
    seq_length=1024,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    bf16=True,
    params_dtype="bf16",
    normalization="RMSNorm",
    add_bias_linear=False,
    gated_linear_unit=True,
    activation_func="silu",
    position_embedding_type="rope",
    share_embeddings_and_output_weights=False,
    q_lora_rank=256,
    kv_lora_rank=256,
    num_moe_experts=16,
    moe_router_topk=4,
    moe_ffn_hidden_size=512,
    moe_shared_expert_intermediate_size=512,
    moe_grouped_gemm=True,
    moe_token_dispatcher_type="alltoall",
    linear_num_key_heads=8,
    linear_num_value_heads=16,
    linear_attention_freq=4,
    dsa_indexer_n_heads=4,
    dsa_indexer_head_dim=128,
    dsa_indexer_topk=256,
    dsa_indexer_loss_coeff=0.01,
    mamba_num_groups=8,
    window_size=(256, 0),
    mtp_num_layers=1,
)
"""Fields for every layer kind at once; a kind reads those it needs."""


def job(batch: int = 2, **fields: Any) -> JobConfig:
    """Return a job with fields of ``model`` changed."""
    return JobConfig(
        identity=JobIdentity(path="test", sha256="0" * 64, format="bridge-yaml"),
        model=replace(SMALL, **fields),
        train=TrainConfig(micro_batch_size=batch, global_batch_size=batch),
        optimizer=None,
        ddp=None,
    )
