"""Requests handed out ahead, answers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Pending(Protocol):
    """An answer that somebody works on."""

    def result(self) -> Any:
        """Wait for the answer, or raise what the work raised."""
        ...


def ahead(
    submit: Callable[[Request], Pending],
    requests: Iterator[Request],
    window: int,
    redo: Callable[[Request, BaseException], Answer],
    lost: tuple[type[BaseException], ...],
) -> Iterator[tuple[Request, Answer]]:
    """Yield every request with its answer, in the order of the requests.

    Args:
        submit: Hands a request to a worker.
        requests: Drawn when there is room in the window.
        window: Requests that are out at once at most.
        redo: Answers a request whose worker was lost.
        lost: What a lost worker raises, when a request is submitted or when its answer is asked for.
    """
    out: deque[tuple[Request, Pending]] = deque()
    while True:
        while len(out) < window:
            try:
                request = next(requests)
            except StopIteration:
                break
            out.append((request, _submitted(submit, request, lost)))
        if not out:
            return
        request, pending = out.popleft()
        try:
            answer = pending.result()
        except lost as error:
            answer = redo(request, error)
        yield request, answer


def _submitted(
    submit: Callable[[Request], Pending], request: Request, lost: tuple[type[BaseException], ...]
) -> Pending:
    try:
        return submit(request)
    except lost as error:
        return _Lost(error)


class _Lost:
    """An answer that nobody works on."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def result(self) -> Any:
        """Raise what was raised when the request was submitted."""
        raise self.error
