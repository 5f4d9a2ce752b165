"""One chunk as a row of units: what each leaves behind, and how high its forward and backward go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from recompute.model.arena import Owners
from recompute.model.tape_profile import TapeProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A layer, a checkpointed group of layers, the embedding or the head."""

    name: str
    saved: int
    forward_peak: int
    backward_peak: int
    weight_grads: int
    left_behind: int = 0
    """Bytes that modules hold from this unit's last run; its next forward replaces them."""
    left_copies: int = 0
    """Of those, copies of weights that are counted among what modules hold for good."""
    left_gradient: int = 0
    """Of those, the gradient of its input, which the unit before takes as that of its output."""
    input_left: bool = False
    """Its input left for the host and could be freed, if nobody else held it."""
    alive_saved: Owners = field(default=(), repr=False)
    alive_at_forward_peak: Owners = field(default=(), repr=False)
    alive_at_backward_peak: Owners = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heights:
    """Highest points of one chunk for one micro-batch, everything else excluded."""

    forward: int
    forward_unit: int
    loss: int
    """Highest point of the head's forward, 0 without a head."""
    backward: int
    backward_unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPeak:
    """What one micro-batch does on one chunk."""

    saved: int
    left_behind: int
    """Bytes that modules hold between steps; part of the static bytes."""
    left_copies: int
    """Of those, copies of weights, which the modules' other static bytes count already."""
    first: Heights
    """No other micro-batch of the chunk is in flight: a unit's forward frees what it left behind."""
    later: Heights
    """Another micro-batch is in flight, so everything left behind has been replaced already."""
    front: int = 0
    """Bytes that the micro-batch which goes back next holds beyond :attr:`saved`."""


def unit_of(name: str, profile: TapeProfile) -> Unit:
    """Make a unit of one tape's profile."""
    return Unit(
        name=name,
        saved=profile.saved,
        forward_peak=profile.forward_peak,
        backward_peak=profile.backward_peak,
        weight_grads=profile.weight_grads,
        left_behind=profile.left_behind,
        left_copies=profile.left_copies,
        left_gradient=profile.left_gradient,
        input_left=profile.input_left,
        alive_saved=profile.alive_saved,
        alive_at_forward_peak=profile.alive_at_forward_peak,
        alive_at_backward_peak=profile.alive_at_backward_peak,
    )


def group_of(
    name: str, whole: Sequence[TapeProfile], plain: Sequence[TapeProfile], stream: int
) -> Unit:
    """Make one unit of consecutive layers inside one checkpoint.

    Forward keeps the first layer's input and runs the others without saving. Backward runs all of
    them again with saving, holds the group's output meanwhile, and goes back through them.

    Args:
        name: Name for reports.
        whole: Profiles of each layer checkpointed on its own; the first one's ``saved`` is kept.
        plain: Profiles of each layer without recompute.
        stream: Bytes of the residual stream.
    """
    held = stream  # the replayed output, kept until the group's backward is over
    before, high = 0, 0
    highest = (0, 0, 0, False)
    later_gradients = sum(layer.weight_grads for layer in plain)
    copies = 0  # of weights, made again as backward goes through their layers
    made = sum(layer.left_copies for layer in whole)
    for index, layer in enumerate(plain):
        later_gradients -= layer.weight_grads
        forward = before + layer.forward_peak + stream
        left = made - copies
        backward = before + layer.backward_peak + held + later_gradients + left
        copies += whole[index].left_copies
        if max(forward, backward) >= high:
            high = max(forward, backward)
            highest = (index, later_gradients, left, forward > backward)
        before += layer.saved
    at, gradients, left, replays = highest
    first_run = max(whole, key=lambda profile: profile.forward_peak)
    return Unit(
        name=name,
        saved=whole[0].saved,
        forward_peak=first_run.forward_peak,
        backward_peak=high,
        weight_grads=sum(layer.weight_grads for layer in plain),
        left_behind=sum(layer.left_behind for layer in plain)
        + whole[0].left_behind
        - plain[0].left_behind
        + made
        - whole[0].left_copies,
        left_copies=made,
        left_gradient=whole[0].left_gradient,
        alive_saved=whole[0].alive_saved,
        alive_at_forward_peak=first_run.alive_at_forward_peak,
        alive_at_backward_peak=_alive_in_group(
            plain[: at + 1], stream, gradients, left, replays=replays
        ),
    )


def _alive_in_group(
    layers: Sequence[TapeProfile], stream: int, gradients: int, copies: int, *, replays: bool
) -> Owners:
    """Say what a group holds at the highest point of its last given layer.

    Args:
        layers: The group up to that layer, without recompute.
        stream: Bytes of the residual stream.
        gradients: Bytes of weight gradients of the layers after it.
        copies: Bytes of weight copies that its backward and those after it have made again.
        replays: The point is in the replay's forward.
    """
    before = [layer.alive_saved for layer in layers[:-1]]
    if replays:
        own = (*layers[-1].alive_at_forward_peak, ("gradient of the output", stream))
        return _merge(own, *before)
    others = (
        ("replayed output", stream),
        ("weight gradients", gradients),
        ("copies of weights", copies),
    )
    return _merge(layers[-1].alive_at_backward_peak, others, *before)


def chunk_peak(units: Sequence[Unit], queue: int | None = None) -> ChunkPeak:
    """Walk a chunk forward and backward once.

    The last unit may be the head; its forward is the loss phase.

    Args:
        units: The chunk.
        queue: Most bytes of weight gradients that later units leave; ``None`` for no limit.
    """
    left = sum(unit.left_behind for unit in units)
    return ChunkPeak(
        saved=sum(unit.saved for unit in units),
        left_behind=left,
        left_copies=sum(unit.left_copies for unit in units),
        first=_heights(units, 0, queue),
        later=_heights(units, left, queue),
    )


def with_front(peak: ChunkPeak, others: ChunkPeak) -> ChunkPeak:
    """Let only the micro-batch that goes back next keep what ``peak`` keeps; later ones keep less.

    Args:
        peak: What the micro-batch at the front of backward does, which runs back first.
        others: What those behind it do.
    """
    later = replace(
        peak.later, forward=others.later.forward, forward_unit=others.later.forward_unit
    )
    return replace(peak, saved=others.saved, later=later, front=peak.saved - others.saved)


def _heights(units: Sequence[Unit], replaced: int, queue: int | None) -> Heights:
    """Find the highest points; ``replaced`` bytes left behind are gone from the start."""
    before, gone = 0, replaced
    forward = loss = forward_unit = 0
    for index, unit in enumerate(units):
        gone += 0 if replaced else unit.left_behind
        high = before + unit.forward_peak - gone
        if unit.name == "head":
            loss = high
        elif high > forward:
            forward, forward_unit = high, index
        before += unit.saved
    gradients = backward = backward_unit = shared = 0
    for index in range(len(units) - 1, -1, -1):
        unit = units[index]
        before -= unit.saved
        high = before + unit.backward_peak + gradients - gone - shared
        if high > backward:
            backward, backward_unit = high, index
        gone -= 0 if replaced else unit.left_behind
        shared = 0 if replaced else unit.left_gradient
        gradients = waiting(gradients + unit.weight_grads, queue)
    return Heights(
        forward=forward,
        forward_unit=forward_unit,
        loss=loss,
        backward=backward,
        backward_unit=backward_unit,
    )


def waiting(gradients: int, queue: int | None) -> int:
    """Return what a queue of so many bytes holds of some gradients."""
    return gradients if queue is None else min(gradients, queue)


def alive_in_backward(units: Sequence[Unit], at: int, queue: int | None = None) -> Owners:
    """Say what a chunk holds at the highest point of one unit's backward."""
    gradients = waiting(sum(unit.weight_grads for unit in units[at + 1 :]), queue)
    return _merge(
        units[at].alive_at_backward_peak,
        (("weight gradients", gradients),),
        *(unit.alive_saved for unit in units[:at]),
    )


def held_in_backward(units: Sequence[Unit], at: int) -> int:
    """Return what modules hold while one unit runs backward and no other micro-batch is in flight.

    The gradient of the next unit's input is not among it: it counts as that of this one's output.
    """
    after = units[at + 1 :]
    shared = after[0].left_gradient if after else 0
    return sum(unit.left_behind for unit in after) - shared


def held_in_forward(units: Sequence[Unit], at: int) -> int:
    """Return what modules hold while one unit runs forward and no other micro-batch is in flight."""
    return sum(unit.left_behind for unit in units[at + 1 :])


def alive_in_forward(units: Sequence[Unit], at: int) -> Owners:
    """Say what a chunk holds at the highest point of one unit's forward."""
    return _merge(units[at].alive_at_forward_peak, *(unit.alive_saved for unit in units[:at]))


def _merge(*parts: Owners) -> Owners:
    totals: dict[str, int] = {}
    for part in parts:
        for owner, size in part:
            totals[owner] = totals.get(owner, 0) + size
    return tuple(sorted(((o, s) for o, s in totals.items() if s), key=lambda i: (-i[1], i[0])))
