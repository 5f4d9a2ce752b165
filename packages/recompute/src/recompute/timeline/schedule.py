"""How many micro-batches of each chunk are in flight when a forward or a backward runs.

1F1B and its interleaved form, as NVIDIA/Megatron-LM core_v0.19.0
megatron/core/pipeline_parallel/schedules.py runs them (get_pp_rank_microbatches,
get_schedule_table, forward_backward_pipelining_with_interleaving). The states do not depend on the
recompute choice, and only those that no other state exceeds can set a peak, so a choice costs a few
sums whatever the number of micro-batches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

Counts = tuple[int, ...]
"""Micro-batches in flight, indexed by chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Micro-batches of each chunk that hold activations while one chunk runs, that one excluded."""

    chunk: int
    others: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The states of one pipeline rank that can set a peak."""

    forward: tuple[InFlight, ...]
    backward: tuple[InFlight, ...]
    deepest: tuple[Counts, ...]
    """States with the most micro-batches in flight, each after a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive steps that run one chunk forward, or backward, or both in turn."""

    forward: int | None
    backward: int | None
    steps: int


@functools.lru_cache(maxsize=4096)
def schedule(*, pp: int, ranks: int, chunks: int, microbatches: int, group: int) -> Schedule:
    """Return the states of one rank.

    Within a stretch the counts change by the same amount at every step, so any sum of bytes over
    them is highest at one of its ends; only the ends are kept.

    Args:
        pp: Pipeline rank.
        ranks: Pipeline parallel size.
        chunks: Virtual pipeline size.
        microbatches: Micro-batches of one step.
        group: Micro-batches that run one chunk before the next (microbatch_group_size_per_vp_stage).
    """
    forward: set[InFlight] = set()
    backward: set[InFlight] = set()
    after: set[Counts] = set()
    counts = [0] * chunks
    for part in _stretches(pp, ranks, chunks, microbatches, group):
        for step in {0, part.steps - 1}:
            before = _moved(counts, part, step, step)
            if part.forward is not None:
                forward.add(InFlight(chunk=part.forward, others=before))
                after.add(_moved(counts, part, step + 1, step))
            if part.backward is not None:
                others = _moved(counts, part, step + 1, step + 1)
                backward.add(InFlight(chunk=part.backward, others=others))
        counts = list(_moved(counts, part, part.steps, part.steps))
    most = max(map(sum, after))
    return Schedule(
        forward=_maximal(forward),
        backward=_maximal(backward),
        deepest=tuple(sorted(state for state in after if sum(state) == most)),
    )


def _moved(counts: list[int], part: Stretch, forwards: int, backwards: int) -> Counts:
    """Return the counts after some forwards and backwards of a stretch."""
    moved = counts.copy()
    if part.forward is not None:
        moved[part.forward] += forwards
    if part.backward is not None:
        moved[part.backward] -= backwards
    return tuple(moved)


def _stretches(
    pp: int, ranks: int, chunks: int, microbatches: int, group: int
) -> Iterator[Stretch]:
    """Yield warm-up, steady state (two periods at most, later ones repeat) and cool-down."""
    total = microbatches * chunks
    if chunks == 1:
        group, warmup = microbatches, min(ranks - pp - 1, total)
    else:
        warmup = min((ranks - pp - 1) * 2 + (chunks - 1) * group, total)
    steady = min(total - warmup, 2 * group * chunks)
    forwards = _order(0, warmup + steady, chunks, microbatches, group)
    ahead: list[tuple[int, int]] = []
    left = warmup
    for chunk, steps in forwards:
        taken = min(left, steps)
        if taken:
            yield Stretch(forward=chunk, backward=None, steps=taken)
        if steps > taken:
            ahead.append((chunk, steps - taken))
        left -= taken
    yield from _paired(ahead, _order(0, steady, chunks, microbatches, group), chunks)
    if steady == total - warmup:
        for chunk, steps in _order(steady, total, chunks, microbatches, group):
            yield Stretch(forward=None, backward=chunks - 1 - chunk, steps=steps)


def _paired(
    ahead: list[tuple[int, int]], behind: Iterator[tuple[int, int]], chunks: int
) -> Iterator[Stretch]:
    """Yield one forward, one backward: stretches in which neither chunk changes."""
    queue = iter(ahead)
    chunk, steps = next(queue, (0, 0))
    for back, length in behind:
        left = length
        while left:
            if not steps:
                chunk, steps = next(queue)
            taken = min(left, steps)
            yield Stretch(forward=chunk, backward=chunks - 1 - back, steps=taken)
            left, steps = left - taken, steps - taken


def _order(
    first: int, last: int, chunks: int, microbatches: int, group: int
) -> Iterator[tuple[int, int]]:
    """Yield (chunk, steps) of the virtual micro-batches from ``first`` up to ``last``.

    Groups of micro-batches run chunk by chunk; the last group may be smaller.
    """
    position = 0
    for start in range(0, microbatches, group):
        size = min(group, microbatches - start)
        for chunk in range(chunks):
            low, high = max(position, first), min(position + size, last)
            if low < high:
                yield chunk, high - low
            position += size
            if position >= last:
                return


def _maximal(states: set[InFlight]) -> tuple[InFlight, ...]:
    """Drop states that another state of the same chunk exceeds everywhere."""
    ordered = sorted(states, key=lambda s: (s.chunk, -sum(s.others), s.others))
    kept: list[InFlight] = []
    for state in ordered:
        covered = any(
            other.chunk == state.chunk
            and all(a >= b for a, b in zip(other.others, state.others, strict=True))
            for other in kept
        )
        if not covered:
            kept.append(state)
    return tuple(kept)
