"""From statuses to a grade. Order-free: a sum, so no finding can ever raise a grade.

penalty = sum over checks of: 0 for pass and na, 1 for warn, the check's severity (1, 2, 4 or 8) for
fail, 8 for crit. A is 0, B 1-2, C 3-4, D 5-7, F 8 and more or a file that cannot be audited.
It follows that A means every check passed, one critical finding means F, two failed high checks
mean F, one means C at best, and a missing frontmatter alone (checks 1 to 3) means C.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mdr.audit.types import GRADES, Severity, Status
from mdr.errors import UsageError

WARN_POINTS: Final = 1
UPPER_BOUNDS: Final = ((0, "A"), (2, "B"), (4, "C"), (7, "D"))
"""(highest penalty, grade), best first; above the last it is F."""


def points(severity: Severity, status: Status) -> int:
    """Return what one check adds to the penalty."""
    match status:
        case Status.CRIT:
            return int(Severity.CRITICAL)
        case Status.FAIL:
            return int(severity)
        case Status.WARN:
            return WARN_POINTS
        case _:
            return 0


def penalty(results: Iterable[tuple[Severity, Status]]) -> int:
    """Sum the points of all checks."""
    return sum(points(severity, status) for severity, status in results)


def grade(total: int) -> str:
    """Return the grade of a penalty."""
    return next((letter for bound, letter in UPPER_BOUNDS if total <= bound), "F")


def meets(actual: str, minimum: str) -> bool:
    """Say whether a grade is at least the minimum.

    Raises:
        mdr.errors.UsageError: one of them is not a grade.
    """
    for letter in (actual, minimum):
        if letter not in GRADES:
            raise UsageError(
                "bad-grade", f"{letter!r} is not a grade", hint="grades are A, B, C, D and F"
            )
    return GRADES.index(actual) <= GRADES.index(minimum)
