"""Where the switches of every recompute boundary are in a built Megatron Core model.

Nothing here imports torch or megatron: layers are known by their attributes, which are the same from 0.16
to 0.19. Source: NVIDIA/Megatron-LM core_v0.16.1 and core_v0.19.0,
megatron/core/transformer/{transformer_layer,attention,multi_latent_attention}.py,
megatron/core/transformer/moe/{moe_layer,experts}.py, megatron/core/ssm/gated_delta_net/common.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

WHOLE_LAYER: Final = "full"
"""Boundary around a whole layer, as ``full/block`` draws it."""
MLP_ACT: Final = "mlp_act"
"""Boundary that Megatron has no label for: the activation between the two linears of a dense MLP."""
NORM_ACT: Final = "norm_act"
"""Boundary that Megatron has no label for: the output of a norm that one linear of the local spec reads,
gone from that linear's forward to its backward."""
OVERLAPPING: Final = {MLP_ACT: ("mlp",), NORM_ACT: ("layernorm", "mlp")}
"""Boundary that we draw -> labels that draw around the same tensors."""
MARK: Final = "_recompute_boundary"
"""Attribute of a forward that we put in place: the name of its boundary."""
LAST: Final = "_recompute_last"
"""Attribute of the first layer of a model that a plan was put on: a :class:`PutOn`."""


class PutOn:
    """Names the plan that was put on a model last; two of the same plan are two.

    Args:
        candidate: The choice as text.
    """

    def __init__(self, candidate: str) -> None:
        self.candidate = candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a built model."""

    number: int
    """Global, from 0; multi-token-prediction layers count on after the decoder's."""
    module: Any
    config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One flag of a stock boundary: module and attribute."""

    module: Any
    attribute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One stock label and where it is switched in a layer."""

    label: str
    switches: Callable[[Any], Iterator[Switch]]


def _attention(layer: Any) -> Iterator[Any]:
    for name in ("self_attention", "cross_attention"):
        module = getattr(layer, name, None)
        if module is not None:
            yield module


def _core_attn(layer: Any) -> Iterator[Switch]:
    for module in _attention(layer):
        if hasattr(module, "checkpoint_core_attention"):
            yield Switch(module=module, attribute="checkpoint_core_attention")


def _mla_up_proj(layer: Any) -> Iterator[Switch]:
    for module in _attention(layer):
        if hasattr(module, "recompute_up_proj"):
            yield Switch(module=module, attribute="recompute_up_proj")


def _layernorm(layer: Any) -> Iterator[Switch]:
    for norm in ("input_layernorm", "pre_mlp_layernorm"):
        if not is_identity(getattr(layer, norm, None)):
            yield Switch(module=layer, attribute=f"recompute_{norm}")


def _mlp(layer: Any) -> Iterator[Switch]:
    if not is_moe(layer) and not is_identity(getattr(layer, "mlp", None)):
        yield Switch(module=layer, attribute="recompute_mlp")


def _moe(layer: Any) -> Iterator[Switch]:
    if is_moe(layer):
        yield Switch(module=layer.mlp, attribute="moe_layer_recompute")


def _moe_act(layer: Any) -> Iterator[Switch]:
    experts = getattr(getattr(layer, "mlp", None), "experts", None)
    if is_moe(layer) and hasattr(experts, "activation_recompute"):
        yield Switch(module=experts, attribute="activation_recompute")


def _shared_experts(layer: Any) -> Iterator[Switch]:
    mlp = getattr(layer, "mlp", None)
    if is_moe(layer) and getattr(mlp, "shared_experts", None) is not None:
        yield Switch(module=mlp, attribute="shared_experts_recompute")


def _gdn_norm_out(layer: Any) -> Iterator[Switch]:
    for module in _attention(layer):
        if hasattr(module, "recompute_norm_out"):
            yield Switch(module=module, attribute="recompute_norm_out")


BOUNDARIES: Final = (
    Boundary(label="core_attn", switches=_core_attn),
    Boundary(label="moe_act", switches=_moe_act),
    Boundary(label="layernorm", switches=_layernorm),
    Boundary(label="mla_up_proj", switches=_mla_up_proj),
    Boundary(label="mlp", switches=_mlp),
    Boundary(label="moe", switches=_moe),
    Boundary(label="shared_experts", switches=_shared_experts),
    Boundary(label="gdn_norm_out", switches=_gdn_norm_out),
)
"""Every stock label, in Megatron's order."""

BY_LABEL: Final = {boundary.label: boundary for boundary in BOUNDARIES}


def layers_of(model: Any) -> tuple[Layer, ...]:
    """Return the transformer layers of a model or of its chunks, wrappers looked through.

    Args:
        model: A module, or a list of the virtual pipeline's chunks, as Megatron's loops hold it.
    """
    chunks: Sequence[Any] = model if isinstance(model, list | tuple) else (model,)
    found: list[Layer] = []
    for chunk in chunks:
        for name, module in chunk.named_modules():
            if not hasattr(module, "recompute_mlp") or not hasattr(module, "layer_number"):
                continue
            found.append(
                Layer(
                    number=_number(name, module),
                    module=module,
                    config=getattr(module, "config", None),
                )
            )
    return tuple(found)


def is_moe(layer: Any) -> bool:
    """Say whether a layer's MLP is a mixture of experts."""
    return bool(getattr(layer, "is_moe_layer", hasattr(getattr(layer, "mlp", None), "router")))


def is_identity(module: Any) -> bool:
    """Say whether a submodule is absent: Megatron puts ``IdentityOp`` there."""
    return module is None or type(module).__name__ in {"IdentityOp", "IdentityFuncOp"}


def has_linears(layer: Any) -> bool:
    """Say whether a layer's MLP is a plain dense one with its two linears."""
    mlp = getattr(layer, "mlp", None)
    return type(mlp).__name__ == "MLP" and hasattr(mlp, "linear_fc1") and not is_moe(layer)


def _norms(layer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the norms of a layer whose output one linear alone reads, with that linear."""
    attention: Any = getattr(layer, "self_attention", None)
    if attention is not None and hasattr(attention, "linear_qkv"):
        yield getattr(layer, "input_layernorm", None), attention.linear_qkv
    if has_linears(layer):
        yield getattr(layer, "pre_mlp_layernorm", None), layer.mlp.linear_fc1


def norms_with_linears(layer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield norms that are modules of their own before a linear of the local spec.

    That linear keeps its input and nothing else of it (NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication).
    """
    for norm, linear in _norms(layer):
        if not is_identity(norm) and type(linear).__name__ == "ColumnParallelLinear":
            yield norm, linear


def norms_in_linears(layer: Any) -> bool:
    """Say whether a linear runs its norm itself.

    Transformer Engine's does both in one autograd function and keeps the norm's output besides its input
    (TransformerEngine v2.20 transformer_engine/pytorch/module/layernorm_linear.py
    ``_LayerNormLinear.forward``): nowhere between them can a boundary be drawn.
    """
    return any(is_identity(norm) and "LayerNorm" in type(x).__name__ for norm, x in _norms(layer))


def active_boundaries(layer: Layer) -> tuple[str, ...]:
    """Return the boundaries that will act when a layer runs, stock labels first."""
    found = [
        boundary.label
        for boundary in BOUNDARIES
        if any(getattr(s.module, s.attribute, False) for s in boundary.switches(layer.module))
    ]
    if getattr(layer.module, "moe_layer_recompute", False) and "moe" not in found:
        found.append("moe")  # the wrapper around partial CUDA graphs
    norms = (norm for norm, _ in norms_with_linears(layer.module))
    found += [
        mark
        for module in (layer.module, getattr(layer.module, "mlp", None), *norms)
        if (mark := mark_of(module)) is not None
    ]
    return tuple(dict.fromkeys(found))


def mark_of(module: Any) -> str | None:
    """Return the boundary that we drew around a module's forward."""
    forward = vars(module).get("forward") if module is not None else None
    return getattr(forward, MARK, None)


def read_back(model: Any) -> dict[str, Any]:
    """Return what a built model really recomputes (``recompute_seen`` of a ledger's row).

    Returns:
        The four fields of its config, the plan that :func:`recompute.megatron.apply` put on (``applied``, as
        text), and per layer the boundaries that are active in it: what was asked for and is in no span of
        ``per_layer`` was dropped or does nothing on this model.
    """
    layers = layers_of(model)
    config = next((layer.config for layer in layers if layer.config is not None), None)
    modules = getattr(config, "recompute_modules", None)
    plan = next((held for one in layers if (held := vars(one.module).get(LAST))), None)
    spans: list[dict[str, Any]] = []
    for layer in sorted(layers, key=lambda item: item.number):
        active = list(active_boundaries(layer))
        if not active:
            continue
        if spans and spans[-1]["modules"] == active and spans[-1]["layers"][1] == layer.number - 1:
            spans[-1]["layers"][1] = layer.number
        else:
            spans.append({"layers": [layer.number, layer.number], "modules": active})
    return {
        "recompute_granularity": getattr(config, "recompute_granularity", None),
        "recompute_modules": None if modules is None else list(modules),
        "recompute_method": getattr(config, "recompute_method", None),
        "recompute_num_layers": getattr(config, "recompute_num_layers", None),
        "applied": None if plan is None else plan.candidate,
        "per_layer": spans,
        "layers_seen": len(layers),
        "cuda_graph_impl": _text(getattr(config, "cuda_graph_impl", None)),
    }


def _number(name: str, module: Any) -> int:
    """Return a layer's global number; those of multi-token prediction follow the decoder's."""
    parts = name.split(".")
    if "mtp" in parts:
        at = parts.index("mtp")
        depth = next((int(part) for part in parts[at:] if part.isdigit()), 0)
        return int(getattr(module.config, "num_layers", 0)) + depth
    return int(module.layer_number) - 1


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
