"""Activations that leave for host memory after forward and return for backward.

Fine-grained offloading moves what is saved inside named groups of modules, ``cpu_offloading`` what
whole layers save. Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/pipeline_parallel/fine_grained_activation_offload.py (ChunkOffloadHandler: tensors of
``min_offloaded_tensor_size`` elements or more) with its uses in transformer_layer.py, attention.py,
multi_latent_attention.py and moe/experts.py. A group's bytes are gone once its forward is over: the
caching allocator counts a tensor as freed when its last owner lets go, whether or not its copy has ended.

The end of every group's backward brings one group back, and so do the groups of the last layer, which
never left (``on_group_start_backward``): a layer is whole again before its backward begins, and while it
runs, the layer before it comes back group by group. Each operation that saved a tensor sent a copy of its
own and gets a tensor of its own back (``tensor_push``, ``tensor_pop``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.model.arena import Arena
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
    copies_each: bool = True
    """A tensor that two operations saved returns as two."""


Saved = Sequence[tuple[int, Sequence[str]]]
"""Position of an operation or of a region's first one, and the storages that it saved."""


class HostMemory:
    """What groups of one tape have sent to the host, and what comes back.

    Args:
        arena: The tape's storages.
        groups: In forward order.
        arrivals: Position of a group's first operation, and the bytes of the layer before that its
            backward brings back.
    """

    def __init__(
        self,
        arena: Arena,
        groups: tuple[OffloadGroup, ...],
        arrivals: tuple[tuple[int, int], ...],
    ) -> None:
        self.arena = arena
        self.groups = groups
        self.arrivals = arrivals
        self.left: list[tuple[OffloadGroup, tuple[str, ...]]] = []
        """Groups that have left, with the storages whose bytes went, in forward order."""
        self._sent: list[list[tuple[int, str]]] = []
        """Position and storage of each copy that those groups sent."""
        self._returned: dict[int, list[str]] = {}
        self.returning: list[int] = []
        """Bytes that each group brings back, in forward order."""

    def holds(self, storage: str) -> bool:
        """Say whether a storage has left."""
        return any(storage in storages for _, storages in self.left)

    def leaves_to_owners(self, storage: str) -> bool:
        """Say whether a storage has left, and is freed only where nobody outside the tape holds it.

        The group of a separate input norm empties its storage whoever holds it.
        """
        groups = [group for group, storages in self.left if storage in storages]
        return storage in self.arena.discarded and all(g.name != "attn_norm" for g in groups)

    def covers(self, position: int) -> bool:
        """Say whether an operation saves inside a group."""
        return any(group.first <= position <= group.last for group in self.groups)

    def send_after(self, position: int, saved: Saved, forced: AbstractSet[str]) -> None:
        """Send what a group saved once its last operation has run.

        Args:
            position: The operation that has run.
            saved: Everything that the tape has saved until now.
            forced: Storages of the operation's reads, should it be the first of its group.
        """
        for group in self.groups:
            if group.last == position:
                away = {storage for _, storages in self.left for storage in storages}
                gone = leaving(group, saved, forced, away, self.arena.sizes)
                self.left.append((group, gone))
                sent = [
                    (at, storage)
                    for at, names in saved
                    for storage in names
                    if group.first <= at <= group.last
                    and self.arena.sizes[storage] >= group.min_bytes
                ]
                self._sent.append(sent if group.copies_each else [(0, s) for s in gone])
                self.returning.append(
                    sum(self.arena.sizes[storage] for _, storage in self._sent[-1])
                )
                for storage in gone:
                    self.arena.discard(storage)

    def bring_back(self) -> None:
        """Bring everything back: the bytes that went, and a tensor for every other copy."""
        for (group, gone), sent in zip(self.left, self._sent, strict=True):
            for index, (at, storage) in enumerate(sent):
                if storage in gone and storage in self.arena.discarded:
                    self.arena.restore(storage)
                    continue
                if not group.copies_each:
                    continue
                copy = f"{storage}/copy {index} of {at}"
                self.arena.allocate(copy, self.arena.sizes[storage], self.arena.owners[storage])
                self._returned.setdefault(at, []).append(copy)

    def let_go_after(self, position: int) -> None:
        """Drop the copies that an operation's backward has used; let the layer before come back."""
        for copy in self._returned.pop(position, []):
            self.arena.release(copy)
        for at, size in self.arrivals:
            if at == position:
                self.arena.allocate(f"arrival {at}", size, "activations brought back")


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
            copies_each=False,
        ),
    )


def leaving(
    group: OffloadGroup,
    saved: Saved,
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
