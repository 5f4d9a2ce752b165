"""How far a long search is, on standard error: nothing for short ones, a line that stays short for others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from recompute.cli import streams
from recompute.search.workers import IN_LINE, Workers

Request = TypeVar("Request")
Answer = TypeVar("Answer")

FIRST_SECONDS: Final = 3.0
"""A search that is over before says nothing."""
TERMINAL_SECONDS: Final = 0.2
FILE_SECONDS: Final = 10.0
"""Between two lines, on a terminal, which overwrites them, and in a file, which keeps them."""


class Watched:
    """Workers whose answers are counted on standard error.

    Args:
        workers: Who works.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, workers: Workers = IN_LINE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.workers, self._clock = workers, clock
        self._terminal = streams.on_terminal()
        self._due = clock() + FIRST_SECONDS
        self._shown = False

    def ordered(
        self,
        function: Callable[[Request], Answer],
        requests: Iterable[Request],
        *,
        what: str,
        of: int,
    ) -> Iterator[tuple[Request, Answer]]:
        """Yield every request with its answer, in the order of the requests."""
        for done, pair in enumerate(
            self.workers.ordered(function, requests, what=what, of=of), start=1
        ):
            self._tell(f"{what}: {done} of at most {of}")
            yield pair

    def finish(self) -> None:
        """Clear the line."""
        if self._shown and self._terminal:
            streams.say("", over=True)
        self._shown = False

    def say(self, text: str) -> None:
        """Say something that stays."""
        self.finish()
        streams.say(f"{text}\n")

    def _tell(self, text: str) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._due = now + (TERMINAL_SECONDS if self._terminal else FILE_SECONDS)
        self._shown = True
        streams.say(text if self._terminal else f"{text}\n", over=self._terminal)
