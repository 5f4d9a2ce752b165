"""The life of every allocation in a trace, and the curve of allocated memory that they add up to.

What torch counts as *allocated* goes up at ``alloc`` and down at ``free_requested``
(``c10/cuda/CUDACachingAllocator.cpp:DeviceCachingAllocator::free``), by sizes rounded up to 512 bytes.
What was alive before recording began is known from two traces it leaves: frees without an
allocation, and live blocks at the end that no event allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recompute.diagnose.snapshot.compact import Stack, TraceEvent
from recompute.diagnose.snapshot.structure import LIVE, Snapshot

ROUND: Final = 512
BEFORE: Final = -1
"""Start of what was alive before the recording."""


@dataclass(slots=True)
class Allocation:
    """One tensor's storage. Times are indices of events."""

    start: int
    end: int
    """One past the last event where it stays: ``len(events)``."""
    size: int
    stack: Stack
    address: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All of one device."""

    events: tuple[TraceEvent, ...]
    allocations: tuple[Allocation, ...]
    """In order of start."""
    curve: tuple[int, ...]
    """Allocated bytes after each event."""
    baseline: int
    """Allocated before the first event, bytes."""

    @property
    def peak(self) -> int:
        """Highest allocated bytes."""
        return max(max(self.curve, default=0), self.baseline)

    @property
    def peak_index(self) -> int:
        """Event after which the peak stands; ``-1`` for the baseline."""
        if not self.curve or max(self.curve) < self.baseline:
            return BEFORE
        return self.curve.index(max(self.curve))

    def alive_at(self, index: int) -> list[Allocation]:
        """Return what is alive after an event."""
        return [item for item in self.allocations if item.start <= index < item.end]


def rounded(size: int) -> int:
    """Return the bytes that the allocator counts for a request."""
    return (max(size, 1) + ROUND - 1) // ROUND * ROUND


def build(snapshot: Snapshot, device: int | None = None) -> Timeline:
    """Replay one device's trace.

    Args:
        snapshot: The snapshot.
        device: Its index; the busiest one by default.
    """
    chosen = snapshot.device if device is None else device
    events = snapshot.traces[chosen] if chosen < len(snapshot.traces) else ()
    allocations, alive = _replay(events)
    allocations += _untraced(snapshot, chosen, alive, len(events))
    allocations.sort(key=lambda item: item.start)
    baseline = sum(item.size for item in allocations if item.start == BEFORE)
    return Timeline(
        events=events,
        allocations=tuple(allocations),
        curve=_curve(allocations, len(events), baseline),
        baseline=baseline,
    )


def _replay(events: tuple[TraceEvent, ...]) -> tuple[list[Allocation], dict[int, Allocation]]:
    allocations: list[Allocation] = []
    alive: dict[int, Allocation] = {}
    end = len(events)
    for index, event in enumerate(events):
        if event.action == "alloc":
            item = Allocation(index, end, rounded(event.size), event.stack, event.addr)
            allocations.append(item)
            alive[event.addr] = item
        elif event.action in {"free_requested", "free"}:
            known = alive.pop(event.addr, None)
            if known is None:
                known = Allocation(BEFORE, end, rounded(event.size), (), event.addr)
                allocations.append(known)
            known.end = index
    return allocations, alive


def _untraced(
    snapshot: Snapshot, device: int, alive: dict[int, Allocation], end: int
) -> list[Allocation]:
    """Return live blocks that no event allocated; correct the sizes of those that one did."""
    found = []
    for segment in snapshot.segments:
        if segment.device != device:
            continue
        for block in segment.blocks:
            if block.state != LIVE:
                continue
            known = alive.get(block.address)
            if known is not None:
                known.size = block.size
                if not known.stack:
                    known.stack = block.stack
                continue
            found.append(Allocation(BEFORE, end, block.size, block.stack, block.address))
    return found


def _curve(allocations: list[Allocation], count: int, baseline: int) -> tuple[int, ...]:
    change = [0] * (count + 1)
    for item in allocations:
        if item.start >= 0:
            change[item.start] += item.size
        if item.end < count:
            change[item.end] -= item.size
    curve, level = [], baseline
    for index in range(count):
        level += change[index]
        curve.append(level)
    return tuple(curve)
