"""Labels: seven digits of the commit, the UTC day of the committer time, longer only on collision."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mdr.version.labels import committed_at, label

COMMIT = "d36ff70" + "0" * 33


def test_the_label_of_the_seed_page() -> None:
    assert label(COMMIT, 1_786_960_000, set()) == "git:20260817.d36ff70"


def test_the_day_is_utc_whatever_the_zone() -> None:
    assert label(COMMIT, 1_767_225_599, set()) == "git:20251231.d36ff70"
    assert label(COMMIT, 1_767_225_600, set()) == "git:20260101.d36ff70"


def test_a_collision_adds_digits_to_the_later_one_only() -> None:
    taken = {"git:20260101.d36ff70"}
    other = "d36ff7012" + "0" * 31
    assert label(other, 1_767_225_600, taken) == "git:20260101.d36ff701"
    taken.add("git:20260101.d36ff701")
    assert label(other, 1_767_225_600, taken) == "git:20260101.d36ff7012"


def test_the_same_digits_on_another_day_do_not_collide() -> None:
    assert label(COMMIT, 1_767_312_000, {"git:20260101.d36ff70"}) == "git:20260102.d36ff70"


def test_absurd_times_have_no_label() -> None:
    for seconds in (-1, 1 << 62, 253_402_300_800):
        assert label(COMMIT, seconds, set()) is None
        assert seconds < 0 or committed_at(seconds) is None


def test_the_last_second_of_the_calendar() -> None:
    assert committed_at(253_402_300_799) == "9999-12-31T23:59:59Z"


@given(
    st.lists(st.text("0123456789abcdef", min_size=40, max_size=40), unique=True, max_size=30),
    st.integers(0, 4_000_000_000),
)
def test_labels_of_one_artifact_are_distinct_and_have_the_shape(
    commits: list[str], seconds: int
) -> None:
    taken: set[str] = set()
    for commit in commits:
        name = label(commit, seconds, taken)
        assert name is not None
        assert name not in taken
        assert re.fullmatch(r"git:\d{8}\.[0-9a-f]{7,40}", name)
        assert commit.startswith(name.rpartition(".")[2])
        taken.add(name)
