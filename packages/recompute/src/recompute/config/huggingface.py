"""Hugging Face ``config.json`` -> draft: the model that Megatron Bridge's AutoBridge would build.

A configuration file says what the weights are; it knows no batch, no parallelism and no GPU. The fusions that
Bridge turns on for a family count as changes, the sizes as given.

Families are rows of :data:`FAMILIES`. Source: NVIDIA-NeMo/Megatron-Bridge 067f987d
src/megatron/bridge/models/conversion/model_bridge.py ``CONFIG_MAPPING`` and the bridge of each family under
src/megatron/bridge/models.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from recompute.config.draft import Draft
from recompute.config.schema import FrozenValue
from recompute.errors import ConfigError

SOURCE: Final = "NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/models"

SIZES: Final[tuple[tuple[str, str], ...]] = (
    ("num_hidden_layers", "num_layers"),
    ("n_layer", "num_layers"),
    ("hidden_size", "hidden_size"),
    ("n_embd", "hidden_size"),
    ("intermediate_size", "ffn_hidden_size"),
    ("num_attention_heads", "num_attention_heads"),
    ("n_head", "num_attention_heads"),
    ("num_key_value_heads", "num_query_groups"),
    ("head_dim", "kv_channels"),
    ("vocab_size", "vocab_size"),
    ("tie_word_embeddings", "share_embeddings_and_output_weights"),
    ("attention_dropout", "attention_dropout"),
    ("hidden_dropout", "hidden_dropout"),
    ("moe_intermediate_size", "moe_ffn_hidden_size"),
    ("n_routed_experts", "num_moe_experts"),
    ("num_local_experts", "num_moe_experts"),
    ("num_experts", "num_moe_experts"),
    ("num_experts_per_tok", "moe_router_topk"),
    ("q_lora_rank", "q_lora_rank"),
    ("kv_lora_rank", "kv_lora_rank"),
    ("qk_nope_head_dim", "qk_head_dim"),
    ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    ("v_head_dim", "v_head_dim"),
    ("index_n_heads", "dsa_indexer_n_heads"),
    ("index_head_dim", "dsa_indexer_head_dim"),
    ("index_topk", "dsa_indexer_topk"),
    ("num_nextn_predict_layers", "mtp_num_layers"),
)
"""Hugging Face name -> field of ``model``; the first that is there wins."""

NORMALS: Final[Mapping[str, FrozenValue]] = MappingProxyType(
    {
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "position_embedding_type": "rope",
        "masked_softmax_fusion": True,
        "cross_entropy_loss_fusion": True,
        "gradient_accumulation_fusion": True,
        "deallocate_pipeline_outputs": True,
        "attention_softmax_in_fp32": False,
    }
)
"""What Bridge's GPT provider has, and every decoder family here. A family that names no fusion of bias and
activation has none: its unfused SwiGLU saves more."""
FUSED: Final = {
    "bias_activation_fusion": True,
    "bias_dropout_fusion": True,
    "persist_layer_norm": True,
}
MOE: Final = {
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
}
MLA: Final = {
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "apply_rope_fusion": False,
    "cross_entropy_fusion_impl": "te",
    "moe_router_dtype": "fp32",
    "moe_shared_expert_overlap": True,
    "moe_router_load_balancing_type": "seq_aux_loss",
}

Config = Mapping[str, Any]
More = Callable[[Config], Mapping[str, FrozenValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family."""

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    fixed: Mapping[str, FrozenValue] = field(default_factory=dict)
    """Fields that the family always has."""
    more: More | None = None
    """Fields that follow from the configuration."""


def _deepseek(config: Config) -> Mapping[str, FrozenValue]:
    layers = int(config.get("num_hidden_layers", 0))
    dense = int(config.get("first_k_dense_replace", 0) or 0)
    shared = int(config.get("n_shared_experts", 0) or 0)
    width = int(config.get("moe_intermediate_size", 0) or 0)
    third = config.get("scoring_func") == "sigmoid"
    return {
        "moe_layer_freq": (0,) * min(dense, layers) + (1,) * max(layers - dense, 0),
        "moe_shared_expert_intermediate_size": shared * width or None,
        "moe_router_score_function": "sigmoid" if third else "softmax",
        "moe_router_enable_expert_bias": third,
        "make_vocab_size_divisible_by": 1280 if third else 3200,
        "q_lora_rank": config.get("q_lora_rank"),
        "num_query_groups": None,
        "kv_channels": None,
    }


def _qwen2(config: Config) -> Mapping[str, FrozenValue]:
    return {"add_qkv_bias": True, **_without_window(config)}


def _without_window(config: Config) -> Mapping[str, FrozenValue]:  # noqa: ARG001 - a row's signature
    return {"window_size": None}


def _mistral(config: Config) -> Mapping[str, FrozenValue]:
    window = config.get("sliding_window")
    return {"window_size": (window - 1, 0)} if isinstance(window, int) and window > 0 else {}


def _mixtral(config: Config) -> Mapping[str, FrozenValue]:
    return {"moe_ffn_hidden_size": config.get("intermediate_size"), **_mistral(config)}


def _qwen3_moe(config: Config) -> Mapping[str, FrozenValue]:
    layers = int(config.get("num_hidden_layers", 0))
    step = int(config.get("decoder_sparse_step", 1) or 1)
    dense = {int(index) for index in config.get("mlp_only_layers", ()) or ()}
    if step == 1 and not dense:
        return {}
    return {
        "moe_layer_freq": tuple(
            int(index not in dense and (index + 1) % step == 0) for index in range(layers)
        )
    }


def _gemma(config: Config) -> Mapping[str, FrozenValue]:
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    window = config.get("sliding_window")
    extra: dict[str, FrozenValue] = {}
    if isinstance(window, int) and window > 0:
        extra["window_size"] = (window - 1, 0)
        extra["window_attn_skip_freq"] = int(pattern) if isinstance(pattern, int) else 2
    return extra


def _gpt_oss(config: Config) -> Mapping[str, FrozenValue]:
    window = config.get("sliding_window")
    return {
        "moe_ffn_hidden_size": config.get("intermediate_size"),
        "window_size": (window - 1, 0) if isinstance(window, int) else None,
        "window_attn_skip_freq": 2 if isinstance(window, int) else None,
        "moe_router_topk": config.get("num_experts_per_tok", config.get("experts_per_token", 4)),
    }


def _nemotron_h(config: Config) -> Mapping[str, FrozenValue]:
    pattern = config.get("hybrid_override_pattern")
    kinds = config.get("layers_block_type")
    if pattern is None and isinstance(kinds, tuple | list):
        pattern = "".join(_SYMBOLS.get(str(kind), "M") for kind in kinds)
    shared = config.get("moe_shared_expert_intermediate_size")
    return {
        "hybrid_override_pattern": pattern,
        "is_hybrid_model": True,
        "mamba_state_dim": config.get("ssm_state_size", 128),
        "mamba_head_dim": config.get("mamba_head_dim", 64),
        "mamba_num_groups": config.get("n_groups", 8),
        "mamba_num_heads": config.get("mamba_num_heads"),
        "moe_shared_expert_intermediate_size": shared,
    }


_SYMBOLS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
_GEGLU: Final = {"layernorm_zero_centered_gamma": True, "share_embeddings_and_output_weights": True}

FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        architectures=("LlamaForCausalLM",),
        model_types=("llama",),
        fixed={**FUSED, "apply_rope_fusion": True},
    ),
    Family(architectures=("MistralForCausalLM",), model_types=("mistral",), more=_mistral),
    Family(architectures=("Qwen2ForCausalLM",), model_types=("qwen2",), more=_qwen2),
    Family(
        architectures=("Qwen3ForCausalLM",),
        model_types=("qwen3",),
        fixed={"qk_layernorm": True},
    ),
    Family(
        architectures=("Qwen3MoeForCausalLM",),
        model_types=("qwen3_moe",),
        fixed={**MOE, "moe_router_load_balancing_type": "aux_loss", "qk_layernorm": True},
        more=_qwen3_moe,
    ),
    Family(
        architectures=("MixtralForCausalLM",),
        model_types=("mixtral",),
        fixed=MOE,
        more=_mixtral,
    ),
    Family(
        architectures=("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        model_types=("deepseek_v2", "deepseek_v3", "kimi_k2"),
        fixed={**FUSED, **MOE, **MLA},
        more=_deepseek,
    ),
    Family(
        architectures=("GemmaForCausalLM",),
        model_types=("gemma",),
        fixed=_GEGLU,
    ),
    Family(
        architectures=("Gemma2ForCausalLM",),
        model_types=("gemma2",),
        fixed=_GEGLU,
        more=_gemma,
    ),
    Family(
        architectures=("Gemma3ForCausalLM",),
        model_types=("gemma3", "gemma3_text"),
        fixed={**_GEGLU, "qk_layernorm": True},
        more=_gemma,
    ),
    Family(
        architectures=("GptOssForCausalLM",),
        model_types=("gpt_oss",),
        fixed={
            **MOE,
            "activation_func": "quick_gelu",
            "add_bias_linear": True,
            "bias_activation_fusion": True,
            "moe_router_load_balancing_type": "none",
            "position_embedding_type": "yarn",
            "softmax_type": "learnable",
        },
        more=_gpt_oss,
    ),
    Family(
        architectures=("NemotronHForCausalLM",),
        model_types=("nemotron_h",),
        fixed={
            **MOE,
            "gated_linear_unit": False,
            "activation_func": "squared_relu",
            "position_embedding_type": "none",
            "bias_dropout_fusion": True,
            "persist_layer_norm": True,
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_load_balancing_type": "seq_aux_loss",
            "moe_router_dtype": "fp32",
            "moe_shared_expert_overlap": True,
        },
        more=_nemotron_h,
    ),
)


def read_huggingface(config: Config, path: str) -> Draft:
    """Read a parsed ``config.json``.

    Args:
        config: The JSON object; lists are tuples.
        path: Named in messages.

    Raises:
        ConfigError: ``unknown-architecture``, naming the nearest family.
    """
    family = _family(config, path)
    draft = Draft()
    seen: set[str] = set()
    for source, target in SIZES:
        value = config.get(source)
        if value is not None and target not in seen:
            seen.add(target)
            draft.set("model", target, value, f"{path}: {source}")
    dtype = config.get("torch_dtype") or config.get("dtype")
    _precision(draft, str(dtype or "bfloat16"), path)
    activation = config.get("hidden_activation") or config.get("hidden_act")
    if activation is not None and "activation_func" not in family.fixed:
        draft.set("model", "activation_func", activation, f"{path}: hidden_act")
    bias = config.get("attention_bias")
    if isinstance(bias, bool) and bias:
        draft.set("model", "add_qkv_bias", value=True, where=f"{path}: attention_bias")
    more = family.more(config) if family.more is not None else {}
    for name, value in {**NORMALS, **family.fixed, **more}.items():
        if name not in seen or name in more:
            draft.change(f"model.{name}", value, f"Bridge's {family.model_types[0]} model", SOURCE)
    vocab = draft.get("model", "vocab_size")
    if isinstance(vocab, int) and "make_vocab_size_divisible_by" not in more:
        draft.change(
            "model.make_vocab_size_divisible_by",
            min(128, vocab & -vocab),
            "the largest power of two up to 128 that divides the vocabulary",
            f"{SOURCE}/conversion/model_bridge.py make_vocab_size_divisible_by",
        )
    if draft.get("model", "num_moe_experts") and not draft.has("model", "moe_ffn_hidden_size"):
        draft.change(
            "model.moe_ffn_hidden_size",
            draft.get("model", "ffn_hidden_size"),
            "experts as wide as the dense layer",
            SOURCE,
        )
    return draft


def _precision(draft: Draft, dtype: str, path: str) -> None:
    name = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype.removeprefix("torch."))
    if name is not None:
        draft.set("model", name, value=True, where=f"{path}: torch_dtype")
        draft.set("model", "params_dtype", name, f"{path}: torch_dtype")


def _family(config: Config, path: str) -> Family:
    names = config.get("architectures") or ()
    wanted = [str(name) for name in names] if isinstance(names, tuple | list) else [str(names)]
    kind = str(config.get("model_type", ""))
    for family in FAMILIES:
        if set(wanted) & set(family.architectures) or (not wanted and kind in family.model_types):
            return family
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    known = [name for family in FAMILIES for name in family.architectures]
    shown = (wanted or [kind or "nothing"])[0][:60]
    near = difflib.get_close_matches(shown, known, 1, 0.5)
    raise ConfigError(
        "unknown-architecture",
        f"{path}: the architecture {shown} is not one that recompute reads",
        hint=f"the nearest is {near[0]}; or write the model section as YAML"
        if near
        else "known: " + ", ".join(known),
        data={"architecture": shown, "known": known},
    )
