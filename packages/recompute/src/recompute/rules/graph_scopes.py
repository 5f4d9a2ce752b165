"""Which combinations of CUDA graph implementation and captured regions a revision takes at all.

Source: NVIDIA/Megatron-LM core_v0.16.0 and core_v0.19.0
megatron/core/transformer/transformer_config.py ``TransformerConfig.__post_init__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.allowed import FIELD_SINCE
from recompute.rules.case import Case, names_of
from recompute.rules.types import Edit

MODULES: Final = frozenset({"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"})
"""Regions that a per-layer graph can capture, from 0.16 on."""

_OLD: Final = frozenset({"full_iteration", "full_iteration_inference"})
_MODULES_FIELD: Final = ORDER["0.18"]

Check = Callable[[Case], bool]


def whole(case: Case) -> bool:
    """Say whether whole layers or the whole iteration are captured."""
    return case.graph == "full_iteration" or not case.scopes or "full_iteration" in case.scopes


def captured(case: Case, region: str) -> bool:
    """Say whether a region runs inside a captured graph."""
    return case.graph != "none" and (whole(case) or region in case.scopes)


def problem(case: Case) -> str | None:
    """Return what is wrong with the graph settings themselves, ``None`` when nothing is."""
    return next((text for text, broken in _CHECKS if broken(case)), None)


def _both_given(case: Case) -> bool:
    model = case.model
    return (
        case.index >= _MODULES_FIELD
        and model.cuda_graph_scope is not None
        and bool(names_of(model.cuda_graph_modules))
        and names_of(model.cuda_graph_modules) != ("full",)
    )


def _unknown(case: Case) -> bool:
    return bool(case.scopes - MODULES - _OLD)


def _per_layer(case: Case) -> bool:
    return case.graph in ("local", "transformer_engine")


def _experts(case: Case) -> int:
    experts = case.model.num_moe_experts
    return experts if isinstance(experts, int) else 0


def _all_moe(case: Case) -> bool:
    frequency = case.model.moe_layer_freq
    return frequency == 1 or (isinstance(frequency, tuple) and 0 not in frequency)


def _drops_and_pads(case: Case) -> bool:
    model = case.model
    return model.moe_expert_capacity_factor is not None and bool(
        model.moe_pad_expert_input_to_capacity
    )


def _copies_to_host(case: Case) -> bool:
    model = case.model
    return (
        not _drops_and_pads(case)
        and model.moe_token_dispatcher_type == "alltoall"
        and (model.moe_expert_capacity_factor is not None or model.moe_router_padding_for_fp8)
    )


def _preprocess_alone(case: Case) -> bool:
    return (
        case.graph == "transformer_engine"
        and "moe_preprocess" in case.scopes
        and "moe_router" not in case.scopes
    )


def _local_router(case: Case) -> bool:
    """Local graphs treat moe_preprocess and moe_router as one."""
    return case.graph == "local" and bool({"moe_preprocess", "moe_router"} & case.scopes)


def _router(case: Case) -> bool:
    return "moe_router" in case.scopes or _local_router(case)


def no_graph(case: Case) -> Edit:
    """Return the edit that switches CUDA graphs off, under whatever names they were on."""
    edit: dict[str, object] = {}
    if case.model.enable_cuda_graph:
        edit["model.enable_cuda_graph"] = False
    if case.model.external_cuda_graph:
        edit["model.external_cuda_graph"] = False
    if case.model.cuda_graph_impl != "none":
        edit["model.cuda_graph_impl"] = "none"
    for name in ("cuda_graph_scope", "cuda_graph_modules"):
        if getattr(case.model, name) is not None and case.index >= ORDER[FIELD_SINCE[name]]:
            edit[f"model.{name}"] = None
    return edit


_CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("cuda_graph_scope and cuda_graph_modules cannot both be set", _both_given),
    ("the scope names a region that Megatron does not have", _unknown),
    (
        "the whole iteration is captured with impl local or full_iteration, not transformer_engine",
        lambda c: c.graph == "transformer_engine" and "full_iteration" in c.scopes,
    ),
    (
        "a full-iteration graph has no other regions",
        lambda c: c.graph == "full_iteration" and bool(c.scopes),
    ),
    (
        "moe and moe_router cannot both be captured",
        lambda c: _per_layer(c) and "moe" in c.scopes and _router(c),
    ),
    ("moe_preprocess is captured together with moe_router only", _preprocess_alone),
    (
        "moe regions need a mixture-of-experts model",
        lambda c: _per_layer(c) and _experts(c) <= 1 and ("moe" in c.scopes or _router(c)),
    ),
    (
        "mlp regions need dense layers, and every layer of this model is MoE",
        lambda c: _per_layer(c) and _experts(c) > 1 and "mlp" in c.scopes and _all_moe(c),
    ),
    (
        "region moe needs drop-and-pad routing (capacity factor and padding to it)",
        lambda c: (
            _per_layer(c) and _experts(c) > 1 and "moe" in c.scopes and not _drops_and_pads(c)
        ),
    ),
    (
        "moe_preprocess copies to the host here and cannot be captured",
        lambda c: (
            _per_layer(c)
            and _experts(c) > 1
            and ("moe_preprocess" in c.scopes or _local_router(c))
            and _copies_to_host(c)
        ),
    ),
)
"""Text and condition, in Megatron's order."""
