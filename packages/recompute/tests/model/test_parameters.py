"""Parameter counts against the totals that model cards and checkpoints state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recompute.model.layer import LAYER_KINDS, layer_kinds, mtp_kind
from recompute.model.ops.ends import embedding_tape, head_tape
from recompute.model.shape import shape_of

from .jobs import job

PLAIN: dict[str, Any] = {
    "mtp_num_layers": None,
    "num_query_groups": None,
    "num_moe_experts": None,
    "moe_shared_expert_intermediate_size": None,
    "window_size": None,
    "should_pad_vocab": False,
    "seq_length": 4096,
}
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "qwen3-30b-a3b": (
        {
            "num_layers": 48,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_query_groups": 4,
            "kv_channels": 128,
            "qk_layernorm": True,
            "num_moe_experts": 128,
            "moe_router_topk": 8,
            "moe_ffn_hidden_size": 768,
            "vocab_size": 151936,
        },
        30_532_122_624,
    ),
    "mixtral-8x7b": (
        {
            "num_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_query_groups": 8,
            "num_moe_experts": 8,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 14336,
            "vocab_size": 32000,
        },
        46_702_792_704,
    ),
    "deepseek-v3": (  # without the routing bias, a buffer of 58 * 256 in Megatron
        {
            "num_layers": 61,
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "ffn_hidden_size": 18432,
            "multi_latent_attention": True,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_layernorm": True,
            "num_moe_experts": 256,
            "moe_router_topk": 8,
            "moe_ffn_hidden_size": 2048,
            "moe_shared_expert_intermediate_size": 2048,
            "moe_layer_freq": (0,) * 3 + (1,) * 58,
            "vocab_size": 129280,
        },
        671_026_419_200 - 58 * 256,
    ),
    "qwen3-next-80b-a3b": (  # without its prediction depth
        {
            "num_layers": 48,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_query_groups": 2,
            "kv_channels": 256,
            "qk_layernorm": True,
            "attention_output_gate": True,
            "experimental_attention_variant": "gated_delta_net",
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "num_moe_experts": 512,
            "moe_router_topk": 10,
            "moe_ffn_hidden_size": 512,
            "moe_shared_expert_intermediate_size": 512,
            "moe_shared_expert_gate": True,
            "vocab_size": 151936,
        },
        79_674_391_296,
    ),
    "nemotron-3-nano-30b-a3b": (
        {
            "num_layers": 52,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "hidden_size": 2688,
            "num_attention_heads": 32,
            "num_query_groups": 2,
            "kv_channels": 128,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "num_moe_experts": 128,
            "moe_router_topk": 6,
            "moe_ffn_hidden_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "gated_linear_unit": False,
            "activation_func": "squared_relu",
            "position_embedding_type": "none",
            "vocab_size": 131072,
        },
        31_577_937_344,
    ),
    "llama-3-8b": (
        {
            "num_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_query_groups": 8,
            "ffn_hidden_size": 14336,
            "vocab_size": 128256,
        },
        8_030_261_248,
    ),
}


def parameters(fields: dict[str, Any], *, tp: int = 1, ep: int = 1) -> tuple[int, int]:
    """Parameters on one rank: all, and those of routed experts."""
    one = job(
        **{
            **PLAIN,
            **fields,
            "tensor_model_parallel_size": tp,
            "sequence_parallel": tp > 1,
            "expert_model_parallel_size": ep,
            "expert_tensor_parallel_size": 1,
        }
    )
    shape = shape_of(one)
    tapes = [LAYER_KINDS[kind](one.model, shape) for kind in layer_kinds(one.model)]
    ends = (
        embedding_tape(one.model, shape, owns_weight=True),
        head_tape(one.model, shape, owns_weight=True),
    )
    every = sum(tape.weight_bytes for tape in (*tapes, *ends))
    return every // shape.act, sum(tape.expert_weight_bytes for tape in tapes) // shape.act


@pytest.mark.parametrize("name", MODELS)
def test_total(name: str) -> None:
    fields, total = MODELS[name]
    assert parameters(fields)[0] == total


def test_a_prediction_depth_of_a_checkpoint() -> None:
    """Qwen3-Next's checkpoint holds 81 324 862 720 parameters, its depth included."""
    fields, total = MODELS["qwen3-next-80b-a3b"]
    one = job(**{**PLAIN, **fields, "mtp_num_layers": 1})
    depth = LAYER_KINDS[mtp_kind(one.model)](one.model, shape_of(one))
    assert total + depth.weight_bytes // 2 == 81_324_862_720


def test_experts_divide_by_their_own_group() -> None:
    fields, _ = MODELS["qwen3-30b-a3b"]
    every, routed = parameters(fields)
    parallel, parallel_routed = parameters(fields, tp=2, ep=8)
    assert parallel_routed * 8 == routed
    assert (every - routed) / 2 < parallel - parallel_routed < (every - routed)


def test_a_prediction_depth_adds_a_layer_a_projection_and_three_norms() -> None:
    fields, _ = MODELS["llama-3-8b"]
    one = job(**{**PLAIN, **fields, "mtp_num_layers": 1})
    shape = shape_of(one)
    inner = LAYER_KINDS[layer_kinds(one.model)[-1]](one.model, shape)
    depth = LAYER_KINDS[mtp_kind(one.model)](one.model, shape)
    hidden = one.model.hidden_size
    assert depth.weight_bytes - inner.weight_bytes == 2 * (2 * hidden * hidden + 3 * hidden)


def test_mamba_2_layer() -> None:
    """mamba2-2.7b's layer: in_proj, conv1d, A, D, dt_bias, norm, out_proj and the norm before it."""
    one = job(**PLAIN, hidden_size=2560, mamba_num_groups=1, mamba_num_heads=80)
    tape = LAYER_KINDS["mamba"](one.model, shape_of(one))
    inner, state, heads = 5120, 128, 80
    mixing = inner + 2 * state
    expected = 2560 * (inner + mixing + heads) + mixing * 5 + 3 * heads + inner
    assert tape.weight_bytes // 2 == expected + inner * 2560 + 2560


def test_delta_net_layer_divides_by_tensor_parallelism() -> None:
    one = job(**{**PLAIN, "linear_num_key_heads": 16, "linear_num_value_heads": 32})
    whole = LAYER_KINDS["gdn"](one.model, shape_of(one)).weight_bytes
    half = replace(one, model=replace(one.model, tensor_model_parallel_size=2))
    part = LAYER_KINDS["gdn"](half.model, shape_of(half)).weight_bytes
    norms = 2 * (one.model.hidden_size + one.model.linear_value_head_dim)
    assert part - norms == (whole - norms) // 2
