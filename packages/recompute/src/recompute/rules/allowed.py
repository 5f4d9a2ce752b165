"""The labels and fields that each revision has.

Source: NVIDIA/Megatron-LM, the assertion on ``recompute_modules`` in
megatron/core/transformer/transformer_config.py ``TransformerConfig.__post_init__`` and the dataclass
fields, read at every tag in ``recompute.rules.types.REFS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from recompute.config.revision import NAMES, ORDER

_FIRST: Final = frozenset({"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe"})
_SHARED: Final = _FIRST | {"shared_experts"}
_GDN: Final = _SHARED | {"gdn_norm_out"}
_OWN: Final[Mapping[str, frozenset[str]]] = {
    "0.12": _FIRST,
    "0.13": _FIRST,
    "0.14": _SHARED,
    "0.15": _SHARED,
    "0.16": _SHARED,
    "0.17": _SHARED,
    "0.18": _SHARED,
    "0.19": _GDN,
    "pin": _GDN,
    "main": _GDN | {"gdp_in_proj", "gdp_qkv", "mhc"},
    "dev": _GDN | {"mhc", "gdn"},
}
LABELS_OF: Final[Mapping[str, frozenset[str]]] = {
    name: _OWN.get(name, frozenset({"core_attn"})) for name in NAMES
}
"""Revision -> labels it accepts; before 0.12 there is no label field, only core attention."""

_OFFLOAD: Final = frozenset(
    {"core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear"}
)
OFFLOAD_OF: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("0.16", "0.17", "0.18"), _OFFLOAD),
    **dict.fromkeys(("0.19", "pin", "dev"), _OFFLOAD | {"fused_group_mlp"}),
    "main": _OFFLOAD | {"fused_group_mlp", "gdp_qkv"},
}
"""Revision -> offload labels it accepts."""

FIELD_SINCE: Final[Mapping[str, str]] = {
    "cuda_graph_impl": "0.15",
    "cuda_graph_modules": "0.18",
    "cuda_graph_scope": "0.12",
    "delay_wgrad_compute": "0.13",
    "enable_mhc_connections": "main",
    "ep_overlap_early_attn_memory_release": "0.16",
    "external_cuda_graph": "0.9",
    "fine_grained_activation_offloading": "0.16",
    "fp4": "0.15",
    "gdp_cutedsl_kernel": "main",
    "gdp_num_chunk_states_to_recompute": "main",
    "mhc_recompute_layer_num": "main",
    "mlp_chunks_for_training": "0.18",
    "moe_paged_stash": "0.18",
    "offload_modules": "0.16",
    "overlap_moe_expert_parallel_comm": "0.14",
    "cpu_offloading_double_buffering": "0.14",
    "activation_offload_fraction": "0.19",
    "pipeline_model_parallel_layout": "0.13",
}
"""Field of ``model`` that rules read -> first revision that has it (0.8 where it is not here)."""

NOT_ON_DEV: Final = frozenset(
    {"enable_mhc_connections", "gdp_cutedsl_kernel", "gdp_num_chunk_states_to_recompute"}
)
ONLY_ON_DEV: Final = frozenset({"enable_hyper_connections"})

NEAREST: Final[Mapping[str, str]] = {
    "moe_layer": "moe",
    "attention": "core_attn",
    "core_attention": "core_attn",
    "attn": "core_attn",
    "self_attention": "core_attn",
    "flash_attn": "core_attn",
    "norm": "layernorm",
    "layer_norm": "layernorm",
    "input_layernorm": "layernorm",
    "pre_mlp_layernorm": "layernorm",
    "rmsnorm": "layernorm",
    "moe_activation": "moe_act",
    "expert_act": "moe_act",
    "mla_up": "mla_up_proj",
    "up_proj": "mla_up_proj",
    "shared_expert": "shared_experts",
    "ffn": "mlp",
    "dense_mlp": "mlp",
    "gdn": "gdn_norm_out",
    "hyper_connection": "mhc",
}
"""What people write -> the label they mean. ``moe_layer`` comes from Megatron's own warning."""


def has_field(revision: str, name: str) -> bool:
    """Say whether ``TransformerConfig`` of a revision has the field."""
    if name in ONLY_ON_DEV:
        return revision == "dev"
    if name in NOT_ON_DEV and revision == "dev":
        return False
    if name == "mhc_recompute_layer_num" and revision == "dev":
        return True
    first = FIELD_SINCE.get(name, "0.8")
    return ORDER[revision] >= ORDER[first]


def nearest_label(name: str, allowed: frozenset[str]) -> str | None:
    """Return the one of the ``allowed`` labels that an unknown one most likely means."""
    import difflib

    plain = name.strip().lower().replace("-", "_")
    for candidate in (plain, NEAREST.get(plain)):
        if candidate in allowed:
            return candidate
    close = difflib.get_close_matches(plain, sorted(allowed), 1, 0.6)
    return close[0] if close else None


def label_since(name: str) -> str | None:
    """Return the first revision that accepts a label, ``None`` for a label of no revision."""
    return next((revision for revision in NAMES if name in _OWN.get(revision, ())), None)
