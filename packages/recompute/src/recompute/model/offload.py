"""Activations that leave for host memory after forward and return for backward.

Fine-grained offloading moves what is saved inside named groups of modules, ``cpu_offloading`` what
whole layers save. Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/pipeline_parallel/fine_grained_activation_offload.py (ChunkOffloadHandler: tensors of
``min_offloaded_tensor_size`` elements or more; a group reloads while the one after it runs backward)
with its uses in transformer_layer.py, attention.py, multi_latent_attention.py and moe/experts.py.
Transfers are taken to keep up: a group's bytes are gone once its forward is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.model.tape import Tape

LAYER_MIN_ELEMENTS: Final = 256 * 1024
"""Smallest tensor that ``cpu_offloading`` moves (transformer_engine/pytorch/cpu_offload.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadGroup:
    """Consecutive operations whose saved tensors leave together."""

    name: str
    first: int
    last: int
    min_bytes: int
    """Smaller tensors stay."""
    forces_input: bool
    """The input of the group is freed even where something outside the group saved it too."""


def offload_groups(model: ModelConfig, tape: Tape, act: int) -> tuple[OffloadGroup, ...]:
    """Return the groups of a layer that ``offload_modules`` names, in forward order.

    Args:
        model: The job's model.
        tape: Operations of one layer.
        act: Bytes of one activation element.
    """
    if not model.fine_grained_activation_offloading:
        return ()
    found = []
    for name in model.offload_modules:
        places = [i for i, op in enumerate(tape.ops) if _group_of(op.name, tape) == name]
        if places:
            found.append(
                OffloadGroup(
                    name=name,
                    first=places[0],
                    last=places[-1],
                    min_bytes=model.min_offloaded_tensor_size * act,
                    forces_input=True,
                )
            )
    return tuple(sorted(found, key=lambda group: group.first))


def whole_layer(tape: Tape, act: int) -> tuple[OffloadGroup, ...]:
    """Return one group of everything that a layer saves (``cpu_offloading``)."""
    return (
        OffloadGroup(
            name="layer",
            first=0,
            last=len(tape.ops) - 1,
            min_bytes=LAYER_MIN_ELEMENTS * act,
            forces_input=False,
        ),
    )


def leaving(
    group: OffloadGroup,
    saved: Sequence[tuple[int, Sequence[str]]],
    forced: AbstractSet[str],
    away: AbstractSet[str],
    sizes: Mapping[str, int],
) -> tuple[str, ...]:
    """Return the storages that leave with a group.

    Args:
        group: The group whose forward is over.
        saved: Position of an operation or a region's first one, and what it saved.
        forced: Storages of the group's input.
        away: Storages that have left before.
        sizes: Bytes of each storage.
    """
    inside = {s for at, names in saved if group.first <= at <= group.last for s in names}
    kept = {s for at, names in saved if at < group.first for s in names} | away
    if group.forces_input:
        kept -= forced - away
    return tuple(sorted(s for s in inside - kept if sizes[s] >= group.min_bytes))


MODULES: Final = {
    "self_attention.linear_proj": "attn_proj",
    "mlp.experts.linear_fc1": "expert_fc1",
}
PREFIXES: Final = {
    "self_attention.core_attention": "core_attn",
    "mlp.experts.activation_func": "moe_act",
    "mlp.experts.weighted_activation": "moe_act",
}
"""Operation, or how its name starts -> its group."""


def _group_of(op: str, tape: Tape) -> str | None:
    """Name the group that an operation saves in.

    A norm that is fused into the linear behind it saves with that linear; only one that is a module of
    its own has a group.
    """
    separate = {region.first for region in tape.regions if region.label == "layernorm"}
    if op == "input_layernorm":
        return "attn_norm" if op in separate else "qkv_linear"
    if op == "pre_mlp_layernorm":
        return "mlp_norm" if op in separate else None
    found = MODULES.get(op) or next((g for p, g in PREFIXES.items() if op.startswith(p)), None)
    if found is not None or not op.startswith("self_attention."):
        return found
    latent = any(other.name.endswith("_down_proj") for other in tape.ops)
    inside = op.endswith((".linear_qkv", ".split", ".q_layernorm", ".k_layernorm"))
    return "qkv_linear" if latent or inside else None
