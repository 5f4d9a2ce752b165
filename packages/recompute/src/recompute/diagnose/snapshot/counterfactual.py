"""The peak that the same run would have had with a label, from its own recorded timeline.

For every pass of the forward through a label's region the tensors that backward needs and the label
would discard are taken out of the curve between the end of the region and the moment at which
backward reaches it; there the replay brings them back, with the transient that the region's own
forward showed. Nothing is known about the model but what the run recorded. The reasoning, and where it
ends, stand in docs/explanation/counterfactual.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from recompute.diagnose.snapshot.classify import REGIONS, Classifier, Reading, RegionRow
from recompute.diagnose.snapshot.timeline import BEFORE, Allocation, Timeline

LOOK_BACK: Final = 60
"""Tensors before a region among which its inputs are looked for."""
LOOK_AHEAD: Final = 400
"""Tensors after a region that are looked at to find when backward reaches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one label would have done to this run."""

    label: str
    passes: int
    """Times the forward went through the region; 0: the label does nothing here."""
    discarded_bytes: int
    """Most bytes discarded at any one moment."""
    transient_bytes: int
    """Largest transient of one replay."""
    peak_bytes: int
    """Allocated peak with the label."""
    peak_delta_bytes: int


@dataclass(slots=True)
class _Pass:
    """One pass through a region."""

    items: list[Allocation]
    end: int
    """First event after the region."""
    scope_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """The timeline, prepared once for all labels."""

    readings: tuple[Reading, ...]
    """One per allocation."""
    starts: tuple[int, ...]
    saved: tuple[Allocation, ...]
    """Forward tensors that live until backward, by start."""
    saved_starts: tuple[int, ...]
    next_backward: tuple[int, ...]
    """Event -> first later event of a backward pass."""


def effects(timeline: Timeline, classifier: Classifier) -> tuple[Effect, ...]:
    """Return the effect of every label, and of full recompute, on a recorded run."""
    traced = [item for item in timeline.allocations if item.start != BEFORE]
    readings = tuple(classifier.read(item.stack) for item in traced)
    index = _prepare(timeline, traced, readings)
    return tuple(_effect(timeline, traced, index, bit, row) for bit, row in enumerate(REGIONS))


def _prepare(timeline: Timeline, traced: list[Allocation], readings: tuple[Reading, ...]) -> _Index:
    count = len(timeline.events)
    marks = [False] * count
    for item, reading in zip(traced, readings, strict=True):
        if reading.backward:
            marks[item.start] = True
    following = [count] * (count + 1)
    for event in range(count - 1, -1, -1):
        following[event] = event if marks[event] else following[event + 1]
    saved = [
        item
        for item, reading in zip(traced, readings, strict=True)
        if reading.forward and item.end > following[min(item.start + 1, count)]
    ]
    return _Index(
        readings=readings,
        starts=tuple(item.start for item in traced),
        saved=tuple(saved),
        saved_starts=tuple(item.start for item in saved),
        next_backward=tuple(following),
    )


def _effect(
    timeline: Timeline, traced: list[Allocation], index: _Index, bit: int, row: RegionRow
) -> Effect:
    count = len(timeline.events)
    change = [0] * (count + 2)
    spikes: dict[int, int] = {}
    passes = _passes(traced, index.readings, 1 << bit, split=row.label == "full")
    largest = 0
    for one in passes:
        gone = _discarded(one, index, row)
        if not gone:
            continue
        back = _replay_start(one, gone, index)
        transient = _transient(one, gone)
        largest = max(largest, transient)
        for item in gone:
            start = max(item.start + 1, one.end)
            if start < back:
                change[start] -= item.size
                change[min(back, item.end)] += item.size
        until = max(item.end for item in gone)
        for item in _held(one, traced, index, 1 << bit):
            change[item.end] += item.size
            change[min(until, count)] -= item.size
        at = min(back, count - 1)
        spikes[at] = max(spikes.get(at, 0), transient)
    return _summed(timeline, row.label, len(passes), change=change, spikes=spikes, largest=largest)


def _summed(
    timeline: Timeline,
    label: str,
    passes: int,
    *,
    change: list[int],
    spikes: dict[int, int],
    largest: int,
) -> Effect:
    level, most, peak = 0, 0, timeline.baseline
    for event, allocated in enumerate(timeline.curve):
        level += change[event]
        most = max(most, -level)
        peak = max(peak, allocated + level + spikes.get(event, 0))
    return Effect(
        label=label,
        passes=passes,
        discarded_bytes=most,
        transient_bytes=largest,
        peak_bytes=peak,
        peak_delta_bytes=peak - timeline.peak,
    )


def _passes(
    traced: list[Allocation], readings: tuple[Reading, ...], bit: int, *, split: bool
) -> list[_Pass]:
    """Group the allocations of a region into passes; a pass ends where the forward leaves it."""
    passes: list[_Pass] = []
    current: _Pass | None = None
    for item, reading in zip(traced, readings, strict=True):
        if not reading.forward:
            current = None if reading.backward else current
            continue
        if reading.regions & bit:
            again = split and current is not None and _repeats(item, current)
            if current is None or again:
                current = _Pass([item], item.start + 1, item.start + 1)
                passes.append(current)
            else:
                current.items.append(item)
            current.end = current.scope_end = item.start + 1
        elif current is not None:
            if reading.scopes & bit:
                current.scope_end = item.start + 1
            else:
                current = None
    return passes


def _repeats(item: Allocation, current: _Pass) -> bool:
    """Tell whether an allocation begins the next layer: it repeats the first one's stack."""
    first, before = current.items[0].stack, current.items[-1].stack
    return item.stack is first and before is not first


def _discarded(one: _Pass, index: _Index, row: RegionRow) -> list[Allocation]:
    """Return what the label would not keep of one pass."""
    backward = index.next_backward[min(one.end, len(index.next_backward) - 1)]
    saved = [item for item in one.items if item.end > backward]
    if not saved or row.keeps == "nothing":
        return saved
    if row.keeps == "attention" and any(_fused(item, index) for item in saved):
        kept = max(saved, key=lambda item: item.size)
    else:
        kept = saved[-1]
    return [item for item in saved if item is not kept]


def _held(one: _Pass, traced: list[Allocation], index: _Index, bit: int) -> list[Allocation]:
    """Return the tensor that the checkpoint would keep because a view of it enters the region.

    Value is a view of the mixed projection. Without the checkpoint attention copies it and the
    projection is freed in the forward; with it the checkpoint saves the view, and so the whole
    projection. It is the first of the tensors that the region outlives.
    """
    start = one.items[0].start
    backward = index.next_backward[min(one.end, len(index.next_backward) - 1)]
    at = bisect_left(index.starts, start)
    for position in range(max(at - LOOK_BACK, 0), at):
        item = traced[position]
        if index.readings[position].holds & bit and start < item.end < backward:
            return [item]
    return []


def _fused(item: Allocation, index: _Index) -> bool:
    at = bisect_right(index.saved_starts, item.start) - 1
    if at < 0 or index.saved[at] is not item:
        return False
    return any(
        "flash" in frame.file.lower()
        or "fused_attn" in frame.file.lower()
        or "flash" in frame.function.lower()
        or "fused_attn" in frame.function.lower()
        for frame in item.stack
    )


def _replay_start(one: _Pass, gone: list[Allocation], index: _Index) -> int:
    """Return the event at which backward reaches the region.

    Backward visits in reverse: what the forward saved right after the region is freed right before.
    """
    first_free = min(item.end for item in gone)
    floor = index.next_backward[min(one.end, len(index.next_backward) - 1)]
    at = bisect_right(index.saved_starts, one.scope_end - 1)
    best = floor
    for item in index.saved[at : at + LOOK_AHEAD]:
        if item.end < first_free and item.start >= one.scope_end:
            best = max(best, item.end)
    return min(max(best, floor), first_free)


def _transient(one: _Pass, gone: list[Allocation]) -> int:
    """Return by how much the region's forward rose above what it left behind, bytes."""
    left = sum(item.size for item in gone)
    changes: list[tuple[int, int]] = []
    for item in one.items:
        changes.append((item.start, item.size))
        if item.end < one.end:
            changes.append((item.end, -item.size))
    level = top = 0
    for _, size in sorted(changes):
        level += size
        top = max(top, level)
    return max(top - left, 0)
