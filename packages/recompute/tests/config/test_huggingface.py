"""Hugging Face configurations: sizes as given, the rest as Megatron Bridge builds the family."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recompute.config.load import load
from recompute.errors import ConfigError

COMMON = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
MLA = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}


def read(architecture: str, **fields: Any) -> Any:
    config = {**COMMON, "architectures": [architecture], **fields}
    return load("-", stdin=json.dumps(config).encode())


@pytest.mark.parametrize(
    ("architecture", "fields", "expected"),
    [
        (
            "LlamaForCausalLM",
            {"tie_word_embeddings": True},
            {
                "share_embeddings_and_output_weights": True,
                "normalization": "RMSNorm",
                "gated_linear_unit": True,
                "add_bias_linear": False,
                "num_query_groups": 4,
                "activation_func": "silu",
                "params_dtype": "bf16",
            },
        ),
        (
            "LlamaForCausalLM",
            {"torch_dtype": "float16", "head_dim": 128},
            {"fp16": True, "kv_channels": 128},
        ),
        ("MistralForCausalLM", {"sliding_window": 4096}, {"window_size": (4095, 0)}),
        ("MistralForCausalLM", {"sliding_window": None}, {"window_size": None}),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 32768},
            {"add_qkv_bias": True, "window_size": None},
        ),
        ("Qwen3ForCausalLM", {}, {"qk_layernorm": True, "add_qkv_bias": False}),
        (
            "Qwen3MoeForCausalLM",
            {
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "mlp_only_layers": [0],
                "decoder_sparse_step": 1,
            },
            {
                "num_moe_experts": 128,
                "moe_router_topk": 8,
                "moe_ffn_hidden_size": 768,
                "moe_layer_freq": (0, 1, 1, 1),
                "moe_grouped_gemm": True,
            },
        ),
        (
            "MixtralForCausalLM",
            {"num_local_experts": 8, "num_experts_per_tok": 2},
            {"num_moe_experts": 8, "moe_ffn_hidden_size": 4096},
        ),
        (
            "DeepseekV2ForCausalLM",
            MLA,
            {
                "multi_latent_attention": True,
                "q_lora_rank": None,
                "moe_layer_freq": (0, 1, 1, 1),
                "moe_shared_expert_intermediate_size": 2816,
                "num_query_groups": None,
                "moe_router_score_function": "softmax",
            },
        ),
        (
            "DeepseekV3ForCausalLM",
            {**MLA, "q_lora_rank": 1536, "scoring_func": "sigmoid", "num_nextn_predict_layers": 1},
            {"q_lora_rank": 1536, "moe_router_enable_expert_bias": True, "mtp_num_layers": 1},
        ),
        (
            "GemmaForCausalLM",
            {"hidden_act": "gelu", "head_dim": 256},
            {
                "activation_func": "gelu",
                "share_embeddings_and_output_weights": True,
                "layernorm_zero_centered_gamma": True,
            },
        ),
        (
            "Gemma2ForCausalLM",
            {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096},
            {"window_size": (4095, 0), "window_attn_skip_freq": 2, "activation_func": "gelu"},
        ),
        (
            "Gemma3ForCausalLM",
            {
                "hidden_activation": "gelu_pytorch_tanh",
                "sliding_window": 512,
                "sliding_window_pattern": 6,
            },
            {"qk_layernorm": True, "window_attn_skip_freq": 6},
        ),
        (
            "GptOssForCausalLM",
            {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128},
            {
                "num_moe_experts": 32,
                "softmax_type": "learnable",
                "add_bias_linear": True,
                "activation_func": "quick_gelu",
                "moe_ffn_hidden_size": 4096,
            },
        ),
        (
            "NemotronHForCausalLM",
            {
                "hybrid_override_pattern": "M-M*",
                "ssm_state_size": 128,
                "mamba_num_heads": 32,
                "mamba_head_dim": 64,
                "n_groups": 8,
            },
            {
                "hybrid_override_pattern": "M-M*",
                "is_hybrid_model": True,
                "gated_linear_unit": False,
                "activation_func": "squared_relu",
                "mamba_num_heads": 32,
            },
        ),
    ],
)
def test_families(architecture: Any, fields: Any, expected: Any) -> None:
    job = read(architecture, **fields)
    assert job.identity.format == "huggingface"
    assert {name: getattr(job.model, name) for name in expected} == expected


def test_model_type_is_enough() -> None:
    config = {**COMMON, "model_type": "llama"}
    assert load("-", stdin=json.dumps(config).encode()).model.normalization == "RMSNorm"


def test_an_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        read("LlamaForCausalML")
    assert caught.value.code == "unknown-architecture"
    assert "LlamaForCausalLM" in caught.value.hint


def test_a_configuration_has_no_batch_and_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            "-",
            stdin=json.dumps({**COMMON, "model_type": "llama"}).encode(),
            require=("batch", "sequence", "gpu"),
        )
    assert caught.value.data["missing"] == ["batch", "sequence", "gpu"]
