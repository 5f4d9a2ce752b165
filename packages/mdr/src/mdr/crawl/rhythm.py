"""When a source is crawled next: pure arithmetic over what the last crawl brought.

A repository that changed is visited twice as often, one that did not a third less often, between bounds.
A failure doubles the wait, with jitter, so that sources which failed together do not come back together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
FIRST_PERIOD: Final = 6 * HOUR
SHORTEST: Final = 30 * MINUTE
LONGEST: Final = 7 * DAY
FIRST_RETRY: Final = MINUTE
LONGEST_RETRY: Final = DAY
MAX_ATTEMPTS: Final = 12
"""Failures in a row after which a source is a dead letter: about a day and a half of trying."""
OWN_FAULT_PAUSE: Final = MINUTE
"""Seconds until a source is due again after a failure that was not its own."""


def period_after(period: int, *, changed: bool) -> int:
    """Return the seconds between crawls after one that worked.

    Args:
        period: What they were before.
        changed: Whether the repository had anything new.
    """
    return min(max(period // 2 if changed else period * 3 // 2, SHORTEST), LONGEST)


def wait_for(period: int, chance: Random) -> int:
    """Return the seconds until the next crawl: the period, more or less a tenth."""
    return round(period * chance.uniform(0.9, 1.1))


def retry_after(attempts: int, chance: Random) -> int:
    """Return the seconds until the next try after ``attempts`` failures in a row, at least one.

    The wait doubles from one minute to one day; between half and all of it is taken.
    """
    longest = min(FIRST_RETRY << min(attempts - 1, 16), LONGEST_RETRY)
    return round(longest * chance.uniform(0.5, 1.0))


def is_due(due: int, ended: int | None, now: float) -> bool:
    """Say whether a source is due.

    A clock that was set back must not let a source wait for years: what ended later than now is due.
    """
    return due <= now or (ended is not None and ended > now + MINUTE)
