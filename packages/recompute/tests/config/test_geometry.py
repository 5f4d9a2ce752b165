"""Jobs whose sizes do not fit together are refused with the field, the value and a fix."""

from __future__ import annotations

from typing import Any

import pytest

from recompute.config.load import load
from recompute.errors import ConfigError

JOB = b"""\
model:
  num_layers: 8
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 4
  ffn_hidden_size: 4096
  vocab_size: 32000
  seq_length: 1024
train:
  micro_batch_size: 2
  global_batch_size: 64
"""


@pytest.mark.parametrize(
    ("overrides", "code", "field"),
    [
        (["model.tensor_model_parallel_size=3"], "does-not-divide", "model.num_attention_heads"),
        (["model.num_query_groups=5"], "does-not-divide", "model.num_attention_heads"),
        (
            ["model.num_attention_heads=12", "model.num_query_groups=null"],
            "does-not-divide",
            "model.hidden_size",
        ),
        (
            [
                "model.num_attention_heads=24",
                "model.num_query_groups=6",
                "model.kv_channels=64",
                "model.tensor_model_parallel_size=4",
            ],
            "does-not-divide",
            "model.num_query_groups",
        ),
        (
            ["model.ffn_hidden_size=4098", "model.tensor_model_parallel_size=4"],
            "does-not-divide",
            "model.ffn_hidden_size",
        ),
        (
            [
                "model.should_pad_vocab=false",
                "model.vocab_size=32001",
                "model.tensor_model_parallel_size=2",
            ],
            "does-not-divide",
            "model.vocab_size",
        ),
        (
            ["model.num_moe_experts=6", "model.expert_model_parallel_size=4"],
            "does-not-divide",
            "model.num_moe_experts",
        ),
        (
            ["model.expert_model_parallel_size=2"],
            "conflicting-values",
            "model.expert_model_parallel_size",
        ),
        (
            ["model.num_moe_experts=4", "model.moe_router_topk=8"],
            "conflicting-values",
            "model.moe_router_topk",
        ),
        (["model.context_parallel_size=3"], "does-not-divide", "model.seq_length"),
        (
            ["model.seq_length=1028", "model.context_parallel_size=4"],
            "does-not-divide",
            "model.seq_length",
        ),
        (
            [
                "model.seq_length=1022",
                "model.tensor_model_parallel_size=4",
                "model.sequence_parallel=true",
            ],
            "does-not-divide",
            "model.seq_length",
        ),
        (["model.bf16=true", "model.fp16=true"], "conflicting-values", "model.bf16"),
        (["model.fp8_param=true"], "conflicting-values", "model.fp8_param"),
        (
            ["model.virtual_pipeline_model_parallel_size=2"],
            "conflicting-values",
            "model.virtual_pipeline_model_parallel_size",
        ),
        (["model.moe_layer_freq=[0,1]"], "layer-count", "model.moe_layer_freq"),
        (["model.hybrid_override_pattern='M*M'"], "layer-count", "model.hybrid_override_pattern"),
        (
            ["hardware.num_gpus=6", "model.tensor_model_parallel_size=4"],
            "world-size",
            "hardware.num_gpus",
        ),
        (
            [
                "hardware.num_gpus=4",
                "model.num_moe_experts=8",
                "model.expert_model_parallel_size=8",
            ],
            "world-size",
            "hardware.num_gpus",
        ),
        (["hardware.num_gpus=5"], "batch-size", "train.global_batch_size"),
        (["train.micro_batch_size=3"], "batch-size", "train.global_batch_size"),
        (
            [
                "model.pipeline_model_parallel_layout='Ett|tL'",
                "model.pipeline_model_parallel_size=2",
            ],
            "pipeline-layout",
            "model.pipeline_model_parallel_layout",
        ),
        (["model.num_layers=null"], "missing-field", "model.num_layers"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: Any, code: Any, field: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", *overrides, stdin=JOB)
    error = caught.value
    assert (error.code, error.data["field"]) == (code, field)
    assert error.hint
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (["model.pipeline_model_parallel_size=3"], "pipeline-split"),
        (
            [
                "model.pipeline_model_parallel_size=2",
                "model.pipeline_model_parallel_layout='Ex|tL'",
            ],
            "pipeline-layout",
        ),
        (
            [
                "model.pipeline_model_parallel_size=2",
                "model.pipeline_model_parallel_layout='Et*4|t*4L'",
                "model.virtual_pipeline_model_parallel_size=2",
            ],
            "pipeline-layout",
        ),
        (["hardware.gpu=h1000"], "unknown-gpu"),
        (["~model"], "missing-section"),
    ],
)
def test_other_refusals(overrides: Any, code: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", *overrides, stdin=JOB)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.tensor_model_parallel_size=8", "model.vocab_size=32001"],
        [
            "hardware.num_gpus=8",
            "model.tensor_model_parallel_size=2",
            "model.context_parallel_size=2",
        ],
        ["model.pipeline_model_parallel_size=2", "model.virtual_pipeline_model_parallel_size=2"],
        ["model.num_moe_experts=8", "model.expert_model_parallel_size=8", "hardware.num_gpus=8"],
        ["hardware.gpu=unheard-of", "hardware.memory_bytes=80000000000"],
        ["model.multi_latent_attention=true", "model.num_query_groups=null"],
    ],
)
def test_what_fits_is_read(overrides: Any) -> None:
    assert load("-", *overrides, stdin=JOB).model.num_layers == 8


def test_an_expert_tensor_size_that_megatron_lm_fills_in_is_named() -> None:
    sizes = (
        "model.num_moe_experts=8",
        "model.moe_ffn_hidden_size=512",
        "model.tensor_model_parallel_size=4",
        "model.expert_model_parallel_size=8",
        "hardware.num_gpus=16",
    )
    with pytest.raises(ConfigError, match="ETP is not given: Megatron takes TP, 4") as caught:
        load("-", *sizes, "framework.entry_point=megatron-lm", stdin=JOB)
    assert caught.value.hint is not None
    assert "model.expert_tensor_parallel_size=1" in caught.value.hint
    given = (*sizes, "model.expert_tensor_parallel_size=4")
    with pytest.raises(ConfigError) as caught:
        load("-", *given, "framework.entry_point=megatron-lm", stdin=JOB)
    assert "ETP is not given" not in str(caught.value)
