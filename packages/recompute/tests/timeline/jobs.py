"""Jobs that the timeline's tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recompute.config.schema import (
    DdpConfig,
    HardwareConfig,
    JobConfig,
    JobIdentity,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)

H200_DENSE = ModelConfig(
    num_layers=8,
    hidden_size=4096,
    num_attention_heads=32,
    num_query_groups=8,
    ffn_hidden_size=14336,
    vocab_size=32768,
    seq_length=4096,
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
    bias_dropout_fusion=True,
)
"""The model of the dense rows in data/h200_dense.json."""


def job(**fields: Any) -> JobConfig:
    """Return the H200 job with fields of ``model`` changed; no DDP wrapper, plain Adam."""
    return JobConfig(
        identity=JobIdentity(path="test", sha256="0" * 64, format="bridge-yaml"),
        model=replace(H200_DENSE, **fields),
        train=TrainConfig(micro_batch_size=2, global_batch_size=2),
        optimizer=None,
        ddp=None,
    )


def megatron_job(*, gpus: int = 1, batch: int = 2, **fields: Any) -> JobConfig:
    """Return the job under Megatron's DDP and distributed optimizer, FP32 gradients."""
    return replace(
        job(**fields),
        train=TrainConfig(micro_batch_size=2, global_batch_size=batch),
        optimizer=OptimizerConfig(use_distributed_optimizer=True),
        ddp=DdpConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        hardware=HardwareConfig(num_gpus=gpus),
    )
