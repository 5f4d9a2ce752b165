"""Labels: ``git:YYYYMMDD.sha7`` from a commit, the same on every machine and at every repository size.

``git log --format=%h`` is not used: its length depends on how many objects the repository has. The
date is the UTC date of the committer time: the author's time and the local zone give other days.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container

FIRST_DIGITS: Final = 7


def committed_at(seconds: int) -> str | None:
    """Write a committer time as RFC 3339 UTC, or return ``None`` when no calendar has it.

    Args:
        seconds: Since 1970-01-01T00:00:00Z, from the commit; may be absurd.
    """
    moment = _moment(seconds)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def label(commit: str, seconds: int, taken: Container[str]) -> str | None:
    """Name a version after its commit.

    Args:
        commit: All digits.
        seconds: Committer time.
        taken: Labels that this artifact already has for other commits; they never change.

    Returns:
        The label with seven digits, more only where a shorter one is taken; ``None`` when the
        committer time is no date between the years 1970 and 9999.
    """
    moment = _moment(seconds)
    if moment is None:
        return None
    day = moment.strftime("%Y%m%d")
    for digits in range(FIRST_DIGITS, len(commit) + 1):
        name = f"git:{day}.{commit[:digits]}"
        if name not in taken:
            return name
    raise AssertionError(f"the commit {commit} already has a label")


def _moment(seconds: int) -> datetime | None:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment if seconds >= 0 else None
