"""One step as a row of moments for a picture: what is alive while each part of a rank's work runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from recompute.model.arena import Owners
from recompute.timeline.types import OwnedBytes, Phase
from recompute.timeline.units_of_work import Unit, alive_in_backward, alive_in_forward

HELD: Final = "held by modules since their last forward"
WORKSPACES: Final = "workspaces and batch"
STATIC: Final = ("parameters", "gradients", "optimizer states", WORKSPACES, HELD)
"""Owners of what is allocated all step long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The highest point while one unit (a layer, an end, the optimizer) runs."""

    phase: Phase
    unit: str
    alive: tuple[OwnedBytes, ...]

    @property
    def bytes(self) -> int:
        """Everything that is alive."""
        return sum(owned.bytes for owned in self.alive)


def moments_of(
    static: Owners, others: tuple[int, int], units: Sequence[Unit], step: Owners
) -> tuple[Moment, ...]:
    """Walk one micro-batch of a chunk forward and backward, then the optimizer.

    Args:
        static: What is allocated all step long.
        others: Bytes that other micro-batches in flight hold, in forward and in backward.
        units: The chunk's units, the head last.
        step: What the optimizer step holds besides ``static``.
    """
    return tuple(_walk(static, others, units, step))


def _walk(
    static: Owners, others: tuple[int, int], units: Sequence[Unit], step: Owners
) -> Iterator[Moment]:
    in_flight = "activations of other micro-batches"
    for index, unit in enumerate(units):
        phase = Phase.LOSS if unit.name == "head" else Phase.FORWARD
        own = alive_in_forward(units, index)
        yield _moment(phase, unit.name, (*static, (in_flight, others[0]), *own))
    for index in range(len(units) - 1, -1, -1):
        own = alive_in_backward(units, index)
        yield _moment(Phase.BACKWARD, units[index].name, (*static, (in_flight, others[1]), *own))
    yield _moment(Phase.OPTIMIZER_STEP, "optimizer", (*static, *step))


def _moment(phase: Phase, unit: str, alive: Owners) -> Moment:
    owned = tuple(OwnedBytes(owner=owner, bytes=size) for owner, size in alive if size)
    return Moment(phase=phase, unit=unit, alive=owned)
