"""Which operations of a tape run again, without running it over an arena.

The time of a choice hangs on this alone, so a search can price every choice and ask for the bytes of the
cheapest only. The same walk as :class:`recompute.model.run.TapeRun`, whose ``replayed`` it equals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recompute.model.tape import Op, Tape

Span = tuple[int, int]
"""First and last operation of a region, both included."""


def replayed_ops(tape: Tape, active: frozenset[str]) -> Iterator[Op]:
    """Yield the operations that run again in one backward, as often as they do.

    Args:
        tape: Operations of one layer.
        active: Labels whose regions recompute.
    """
    spans = tuple(
        (tape.position(region.first), tape.position(region.last))
        for region in tape.regions
        if region.label in active
    )
    for first, last in _replays(spans, 0, len(tape.ops)):
        yield from tape.ops[first : last + 1]


def _replays(spans: Sequence[Span], low: int, high: int) -> Iterator[Span]:
    """Yield the widest regions of a stretch, each with those that act again inside its replay."""
    position = low
    while position < high:
        last = max((s[1] for s in spans if s[0] == position and s[1] < high), default=-1)
        if last < 0:
            position += 1
            continue
        yield position, last
        inside = [s for s in spans if position <= s[0] and s[1] <= last and s != (position, last)]
        yield from _replays(inside, position, last + 1)
        position = last + 1
