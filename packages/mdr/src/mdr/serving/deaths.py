"""How often server processes died lately: when to start the next, and when to give up."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW: Final = 60.0
"""Seconds after which a death no longer counts."""
MOST: Final = 10
"""Deaths within :data:`WINDOW` after which something else must be wrong; with many processes, two each."""
FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 5.0


class Deaths:
    """A rate, not a count: a service that runs for years may lose a process now and then."""

    def __init__(self, processes: int, now: Callable[[], float] = time.monotonic) -> None:
        """Take how many processes there are."""
        self._most = max(MOST, 2 * processes)
        self._now = now
        self._moments: deque[float] = deque()

    def __len__(self) -> int:
        """Return how many died within the window."""
        while self._moments and self._moments[0] <= self._now() - WINDOW:
            self._moments.popleft()
        return len(self._moments)

    def another(self) -> float | None:
        """Count one.

        Returns:
            The moment from which on the next may start, the later the more died lately; ``None`` when
            too many did.
        """
        self._moments.append(self._now())
        number = len(self)
        if number > self._most:
            return None
        return self._now() + min(FIRST_WAIT * 2.0 ** (number - 1), LONGEST_WAIT)
