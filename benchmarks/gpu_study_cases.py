"""What gpu_study.py measures: models and the recompute choices of each, one case a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

BASE: dict[str, Any] = {
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bias_dropout_fusion": True,
}

MODELS: dict[str, dict[str, Any]] = {
    "dense_gqa": {
        "num_layers": 8,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "ffn_hidden_size": 14336,
    },
    "gpt3": {
        "num_layers": 8,
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "ffn_hidden_size": 12288,
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "gated_linear_unit": False,
        "activation_func": "gelu",
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "qwen3": {
        "num_layers": 10,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "kv_channels": 128,
        "ffn_hidden_size": 9728,
        "qk_layernorm": True,
        "bias_activation_fusion": True,
        "apply_rope_fusion": True,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
    },
    "qwen3_moe": {
        "num_layers": 6,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_query_groups": 4,
        "kv_channels": 128,
        "ffn_hidden_size": 6144,
        "qk_layernorm": True,
        "num_moe_experts": 32,
        "moe_router_topk": 8,
        "moe_ffn_hidden_size": 768,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_router_force_load_balancing": True,
        "moe_aux_loss_coeff": 0.001,
        "bias_activation_fusion": True,
        "apply_rope_fusion": True,
    },
    "mla_moe": {
        "num_layers": 6,
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "ffn_hidden_size": 8192,
        "multi_latent_attention": True,
        "q_lora_rank": 1024,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
        "qk_layernorm": True,
        "num_moe_experts": 16,
        "moe_router_topk": 4,
        "moe_ffn_hidden_size": 1536,
        "moe_shared_expert_intermediate_size": 1536,
        "moe_grouped_gemm": True,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1],
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_router_force_load_balancing": True,
        "moe_router_score_function": "sigmoid",
        "moe_router_dtype": "fp32",
        "bias_activation_fusion": True,
        "rope_type": "rope",
    },
    "dense_local": {
        "num_layers": 6,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_query_groups": 4,
        "ffn_hidden_size": 5632,
    },
}

INPUTS: dict[str, dict[str, int]] = {
    "dense_gqa": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 32768},
    "gpt3": {"seq_length": 2048, "micro_batch_size": 4, "vocab_size": 51200},
    "qwen3": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 151936},
    "qwen3_moe": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 32768},
    "mla_moe": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 32768},
    "dense_local": {"seq_length": 1024, "micro_batch_size": 4, "vocab_size": 32768},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration to measure."""

    model: str
    recompute: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    wrapper: str = "plain"
    """``plain``: torch AdamW, no DDP. ``megatron``: Megatron's DDP and distributed optimizer."""
    ddp: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    repeat: int = 0
    microbatches: int = 1
    snapshot: str = ""
    mlp_layers: int | None = None
    """With the ``mlp`` label: only the first so many layers replay it, as a per-layer plan would."""
    steps: int = 5


_NARROW: Final = {"main_grads_dtype": "bf16", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
MASTERS: Final[tuple[dict[str, Any], ...]] = tuple(
    {"use_precision_aware_optimizer": True, **options}
    for options in (
        {"fp8_recipe": "tensorwise"},
        _NARROW,
        {**_NARROW, "fp8_recipe": "tensorwise"},
    )
)
"""Who keeps the master weights: Megatron Core where the optimizer's config names such an FP8 recipe."""


def labels(*names: str) -> dict[str, Any]:
    """Return a selective choice."""
    return {"recompute_granularity": "selective", "recompute_modules": list(names)}


def full(method: str, count: int) -> dict[str, Any]:
    """Return a full choice."""
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": count,
    }


def cases() -> list[Case]:
    """List the study, most useful rows first."""
    dense = [labels(), labels("core_attn"), labels("mlp"), full("uniform", 1), full("block", 3)]
    moe = [
        labels(),
        labels("core_attn"),
        labels("layernorm"),
        labels("moe_act"),
        labels("moe"),
        labels("moe_act", "layernorm"),
        full("uniform", 1),
        full("uniform", 2),
        full("block", 2),
    ]
    mla = [
        *moe[:5],
        labels("mla_up_proj"),
        labels("mlp"),
        labels("shared_experts"),
        labels("mla_up_proj", "moe_act"),
        labels("core_attn", "mla_up_proj"),
        full("uniform", 1),
    ]
    megatron = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
    half = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": False}
    study = [Case(model="dense_gqa", recompute=c, wrapper="megatron", ddp=megatron) for c in dense]
    study += [
        Case(model="dense_gqa", recompute=labels("mlp"), wrapper="megatron", ddp=half),
        Case(
            model="dense_gqa",
            recompute=labels(),
            wrapper="megatron",
            ddp=half,
            optimizer={"use_precision_aware_optimizer": True},
        ),
        *(
            Case(model="dense_gqa", recompute=c, wrapper="megatron", ddp=half, optimizer=kept)
            for kept in MASTERS
            for c in (labels(), full("uniform", 1))
        ),
        Case(
            model="dense_gqa",
            recompute=labels("mlp"),
            wrapper="megatron",
            ddp=megatron,
            microbatches=2,
        ),
        Case(model="dense_gqa", recompute=labels("mlp"), microbatches=2),
        Case(model="dense_gqa", recompute=labels(), extra={"bias_activation_fusion": True}),
    ]
    study += [Case(model="gpt3", recompute=c) for c in dense]
    study += [Case(model="gpt3", recompute=labels(), extra={"bias_activation_fusion": True})]
    study += [Case(model="qwen3", recompute=c) for c in (*dense, full("uniform", 5), labels())]
    study += [Case(model="qwen3_moe", recompute=c) for c in moe]
    study += [Case(model="mla_moe", recompute=c) for c in mla]
    local = [*dense, labels("layernorm"), labels("layernorm", "mlp")]
    study += [Case(model="dense_local", recompute=c) for c in local]
    for recipe in ("tensorwise", "delayed", "blockwise"):
        fp8 = {"fp8": "hybrid", "fp8_recipe": recipe}
        for choice in (labels(), labels("core_attn"), labels("mlp"), full("uniform", 1)):
            study.append(Case(model="dense_gqa", recompute=choice, extra=fp8))
    for recipe in ("tensorwise", "blockwise"):
        fp8 = {"fp8": "hybrid", "fp8_recipe": recipe, "moe_router_padding_for_fp8": True}
        for choice in (labels(), labels("moe_act"), labels("layernorm"), labels("moe")):
            study.append(Case(model="qwen3_moe", recompute=choice, extra=fp8))
    study += [
        Case(model="qwen3_moe", recompute=c, extra={"moe_permute_fusion": False}) for c in moe[:5]
    ]
    return study


def snapshot_cases(folder: Path) -> list[Case]:
    """List small models whose control is recorded, and their labels' runs to compare with."""
    study: list[Case] = []
    wanted = {
        "dense_gqa": [labels("mlp"), labels("core_attn"), full("uniform", 1)],
        "dense_local": [labels("core_attn"), labels("layernorm"), labels("mlp")],
        "qwen3_moe": [labels("moe_act"), labels("layernorm"), labels("moe"), labels("core_attn")],
        "mla_moe": [
            labels("mla_up_proj"),
            labels("shared_experts"),
            labels("moe_act"),
            labels("mlp"),
            labels("layernorm"),
            labels("moe"),
        ],
    }
    for model, choices in wanted.items():
        layers: dict[str, Any] = {"num_layers": 4}
        if model == "mla_moe":
            layers["moe_layer_freq"] = [0, 1, 1, 1]
        path = str(folder / f"{model}.pickle")
        study.append(Case(model=model, recompute=labels(), extra=layers, snapshot=path))
        study += [
            Case(model=model, recompute=choice, extra=layers, snapshot="none")
            for choice in (labels(), *choices)
        ]
    return study


def planning_cases() -> list[Case]:
    """List every stock choice of one dense model, per-layer plans beside them, the control twice."""
    layers = MODELS["qwen3"]["num_layers"]
    choices = [labels(), labels("core_attn"), labels("mlp"), labels("core_attn", "mlp"), labels()]
    choices += [full("uniform", count) for count in (1, 2, 5, 10)]
    choices += [full("block", count) for count in range(1, layers)]
    study = [Case(model="qwen3", recompute=choice, steps=12) for choice in choices]
    study += [
        Case(model="qwen3", recompute=labels("mlp"), mlp_layers=count, steps=12)
        for count in range(1, layers)
    ]
    return [*study, Case(model="qwen3", recompute=labels(), repeat=1, steps=12)]
