"""Laws of the penalty formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.audit.grade import grade, meets, penalty
from mdr.audit.rulesets import R1
from mdr.audit.types import GRADES, Severity, Status
from mdr.errors import UsageError

statuses = st.lists(st.sampled_from(list(Status)), min_size=len(R1), max_size=len(R1))
SEVERITIES = [check.severity for check in R1]


def graded(found: list[Status]) -> str:
    return grade(penalty(zip(SEVERITIES, found, strict=True)))


@given(statuses, st.randoms())
def test_order_does_not_matter(found: list[Status], random: object) -> None:
    rows = list(zip(SEVERITIES, found, strict=True))
    shuffled = rows.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert penalty(rows) == penalty(shuffled)


@given(statuses, st.integers(0, len(R1) - 1), st.sampled_from(list(Status)))
def test_a_worse_status_never_raises_the_grade(
    found: list[Status], place: int, worse: Status
) -> None:
    if worse.rank < found[place].rank:
        return
    changed = [*found[:place], worse, *found[place + 1 :]]
    assert GRADES.index(graded(changed)) >= GRADES.index(graded(found))


@given(statuses)
def test_a_means_that_nothing_was_found(found: list[Status]) -> None:
    assert (graded(found) == "A") == all(status.rank == 0 for status in found)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(Severity.CRITICAL, Status.FAIL)], "F"),
        ([(Severity.LOW, Status.CRIT)], "F"),
        ([(Severity.HIGH, Status.FAIL)] * 2, "F"),
        ([(Severity.HIGH, Status.FAIL)], "C"),
        ([(Severity.HIGH, Status.FAIL), (Severity.MEDIUM, Status.FAIL)], "D"),
        ([(Severity.LOW, Status.FAIL)] * 3, "C"),
        ([(Severity.MEDIUM, Status.FAIL)], "B"),
        ([(Severity.CRITICAL, Status.WARN)] * 2, "B"),
        ([(Severity.CRITICAL, Status.WARN)] * 7, "D"),
    ],
)
def test_points(rows: list[tuple[Severity, Status]], expected: str) -> None:
    assert grade(penalty(rows)) == expected


def test_minimum_grades() -> None:
    assert meets("A", "F")
    assert meets("C", "C")
    assert not meets("D", "C")
    with pytest.raises(UsageError):
        meets("E", "A")
