"""Who does the parts of a search: this process, or others that answer in the same order.

A search draws its requests one by one and looks at answers in the order of its requests, so the answer is
the same whoever works and however many they are. What works in other processes is
:mod:`recompute.spread`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Workers(Protocol):
    """Runs a function over requests."""

    def ordered(
        self,
        function: Callable[[Request], Answer],
        requests: Iterable[Request],
        *,
        what: str,
        of: int,
    ) -> Iterator[tuple[Request, Answer]]:
        """Yield every request with its answer, in the order of the requests.

        Args:
            function: A function of a module; requests and answers can be pickled.
            requests: Drawn when somebody is free, so ahead of the answers; more of them may be worked on
                than are asked for in the end.
            what: Name of the answers in the plural, for progress.
            of: How many there are at most.
        """
        ...


class InLine:
    """This process, one request after the other."""

    def ordered(
        self,
        function: Callable[[Request], Answer],
        requests: Iterable[Request],
        *,
        what: str,
        of: int,
    ) -> Iterator[tuple[Request, Answer]]:
        """Yield every request with its answer."""
        return ((request, function(request)) for request in requests)


IN_LINE = InLine()
