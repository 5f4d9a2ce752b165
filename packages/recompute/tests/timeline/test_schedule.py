"""In-flight micro-batches against a plain simulation of the whole schedule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recompute.timeline.schedule import schedule


def test_1f1b_holds_one_more_for_each_rank_to_come() -> None:
    deepest = [
        schedule(pp=pp, ranks=4, chunks=1, microbatches=8, group=4).deepest[0][0] for pp in range(4)
    ]
    assert deepest == [4, 3, 2, 1]


def test_few_microbatches_limit_what_is_in_flight() -> None:
    assert schedule(pp=0, ranks=8, chunks=1, microbatches=2, group=8).deepest == ((2,),)


def test_interleaving_holds_more_of_the_first_chunks() -> None:
    plan = schedule(pp=0, ranks=4, chunks=2, microbatches=8, group=4)
    assert sum(plan.deepest[0]) == (4 - 1) * 2 + 1 * 4 + 1
    assert plan.deepest[0][0] >= plan.deepest[0][1]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    ranks = draw(st.integers(2, 6))
    chunks = draw(st.integers(1, 4))
    microbatches = ranks * draw(st.integers(1, 5))
    return draw(st.integers(0, ranks - 1)), ranks, chunks, microbatches


def simulate(
    pp: int, ranks: int, chunks: int, microbatches: int
) -> list[tuple[bool, int, tuple[int, ...]]]:
    """Run the whole schedule from its published definition; give every state."""
    table = [
        (mb, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for mb in range(first, min(first + ranks, microbatches))
    ]
    total = microbatches * chunks
    warmup = ranks - pp - 1 if chunks == 1 else (ranks - pp - 1) * 2 + (chunks - 1) * ranks
    warmup = min(warmup, total)
    counts, states = [0] * chunks, []

    def forward(k: int) -> None:
        chunk = table[k][1]
        states.append((True, chunk, tuple(counts)))
        counts[chunk] += 1

    def backward(k: int) -> None:
        chunk = chunks - 1 - table[k][1]
        counts[chunk] -= 1
        states.append((False, chunk, tuple(counts)))

    for k in range(warmup):
        forward(k)
    for k in range(total - warmup):
        forward(k + warmup)
        backward(k)
    for k in range(total - warmup, total):
        backward(k)
    assert counts == [0] * chunks
    return states


@given(shapes(), st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_the_kept_states_have_the_peak_of_the_whole_schedule(
    shape: tuple[int, int, int, int], sizes: list[int]
) -> None:
    pp, ranks, chunks, microbatches = shape
    plan = schedule(pp=pp, ranks=ranks, chunks=chunks, microbatches=microbatches, group=ranks)
    states = simulate(*shape)

    def bytes_of(counts: tuple[int, ...]) -> int:
        return sum(count * size for count, size in zip(counts, sizes, strict=False))

    for kept, direction in ((plan.forward, True), (plan.backward, False)):
        for chunk in range(chunks):
            every = [bytes_of(o) for f, c, o in states if (f, c) == (direction, chunk)]
            assert max(every) == max(bytes_of(s.others) for s in kept if s.chunk == chunk)
        for state in kept:
            assert (direction, state.chunk, state.others) in states
    assert max(sum(o) for f, _, o in states if f) + 1 == sum(plan.deepest[0])
