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


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Micro-batches of each chunk that hold activations while one chunk runs, that one excluded."""

    chunk: int
    others: tuple[int, ...]
    """Indexed by chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The states of one pipeline rank that can set a peak."""

    forward: tuple[InFlight, ...]
    backward: tuple[InFlight, ...]
    deepest: tuple[int, ...]
    """Micro-batches of each chunk in flight when most are, after that forward."""


@functools.lru_cache(maxsize=4096)
def schedule(*, pp: int, ranks: int, chunks: int, microbatches: int, group: int) -> Schedule:
    """Return the states of one rank.

    Args:
        pp: Pipeline rank.
        ranks: Pipeline parallel size.
        chunks: Virtual pipeline size.
        microbatches: Micro-batches of one step.
        group: Micro-batches that run one chunk before the next (microbatch_group_size_per_vp_stage).
    """
    steps = _interleaved if chunks > 1 else _one_forward_one_backward
    forward: set[InFlight] = set()
    backward: set[InFlight] = set()
    deepest = [0] * chunks
    counts = [0] * chunks
    for is_forward, chunk in steps(pp, ranks, chunks, microbatches, group):
        if is_forward:
            forward.add(InFlight(chunk=chunk, others=tuple(counts)))
            counts[chunk] += 1
            if sum(counts) > sum(deepest):
                deepest = counts.copy()
        else:
            counts[chunk] -= 1
            backward.add(InFlight(chunk=chunk, others=tuple(counts)))
    return Schedule(forward=_maximal(forward), backward=_maximal(backward), deepest=tuple(deepest))


def _one_forward_one_backward(
    pp: int, ranks: int, chunks: int, microbatches: int, group: int
) -> Iterator[tuple[bool, int]]:
    """Yield (is forward, chunk) without interleaving; later periods repeat and are left out."""
    warmup = min(ranks - pp - 1, microbatches)
    for _ in range(warmup):
        yield True, 0
    if microbatches > warmup:
        yield True, 0
        yield False, 0
    for _ in range(warmup):
        yield False, 0


def _interleaved(
    pp: int, ranks: int, chunks: int, microbatches: int, group: int
) -> Iterator[tuple[bool, int]]:
    """Yield (is forward, chunk) of the interleaved schedule, two steady periods at most."""
    total = microbatches * chunks
    warmup = min((ranks - pp - 1) * 2 + (chunks - 1) * group, total)
    steady = min(total - warmup, 2 * group * chunks)
    for step in range(warmup):
        yield True, _chunk_at(step, chunks, microbatches, group)
    for step in range(steady):
        yield True, _chunk_at(warmup + step, chunks, microbatches, group)
        yield False, chunks - 1 - _chunk_at(step, chunks, microbatches, group)
    if steady == total - warmup:
        for step in range(steady, total):
            yield False, chunks - 1 - _chunk_at(step, chunks, microbatches, group)


def _chunk_at(step: int, chunks: int, microbatches: int, group: int) -> int:
    """Return the chunk of a virtual micro-batch: groups of micro-batches, chunk by chunk."""
    full = group * chunks
    in_group = min(group, microbatches - step // full * group)
    return step % full // in_group


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
