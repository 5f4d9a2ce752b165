"""What counts as memory that steady steps leave behind, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.megatron.growth import GROWTH_BYTES, GROWTH_STEPS, Growth

MIB = 1 << 20
BASE = 900 * MIB


def grown(*ends: int | None) -> int:
    growth = Growth()
    for end in ends:
        growth.ended(end)
    return growth.bytes_per_step


@pytest.mark.parametrize(
    ("ends", "per_step"),
    [
        ([0, 1, 2, 3, 4], 1),
        ([0, 1, 2, 3, 4, 4], 1),  # the last step left nothing, by chance
        ([0, 1, 2, 3], 0),  # not often enough to be called so
        ([0, 0, 2, 2, 4, 4, 6, 6, 8], 1),  # in every second step
        ([0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 16], 1),  # in every fourth
        ([0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9, 9, 12], 1),  # in every third
        ([0, 5, 5, 5, 5, 5, 5, 5, 5], 0),  # a workspace, once
        ([0, 1, 2, 3, 4, 5, 5, 5, 5, 5], 0),  # it came to an end
        ([0, 1, 2, 3, 4, 0], 0),  # it was freed again
        ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3], 0),
        ([0, 1, 2, None, 3, 4, 5], 0),
    ],
)
def test_what_is_growth(ends: list[int | None], per_step: int) -> None:
    found = grown(*(None if end is None else BASE + end * MIB for end in ends))
    assert found == per_step * MIB


@given(st.lists(st.integers(0, GROWTH_BYTES - 1), max_size=60))
def test_rounding_is_no_growth(ends: list[int]) -> None:
    assert grown(*(BASE + end for end in ends)) == 0


@given(
    st.lists(st.integers(GROWTH_BYTES, 64 * MIB), min_size=GROWTH_STEPS, max_size=40),
    st.lists(st.integers(0, 1 << 20).map(lambda count: count * GROWTH_BYTES), max_size=20),
)
def test_steps_that_all_leave_something_behind_are_growth_whatever_was_before(
    rises: list[int], before: list[int]
) -> None:
    ends = [*before, 0]
    for rise in rises:
        ends.append(ends[-1] + rise)
    assert min(rises) <= grown(*ends) <= max(rises)
