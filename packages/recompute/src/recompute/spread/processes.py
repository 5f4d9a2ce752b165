"""Processes of this machine: all cores for long searches, none for short ones.

Work starts in the calling process; processes start once it has taken long enough that starting them costs
little beside what is left. Whatever happens to them, the answer is complete: work of a process that died
is done again here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, Final, Self, TypeVar

from recompute.spread.ahead import ahead

Request = TypeVar("Request")
Answer = TypeVar("Answer")

WORTH_SECONDS: Final = 0.5
"""Work done in the calling process before others are started."""
AHEAD: Final = 3
"""Requests out for each process, so that none waits for the caller."""
MOST: Final = 61
"""Processes at most: what concurrent.futures allows on every system."""


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Processes:
    """Workers on this machine; a context manager that leaves no process behind.

    Args:
        count: Processes at most; 1 works in the calling process alone.
        worth_seconds: Work done in the calling process before others are started.
        say: Told what a user should know, one line each.
    """

    def __init__(
        self,
        count: int,
        *,
        worth_seconds: float = WORTH_SECONDS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.count = min(count, MOST)
        self._worth, self._worked = worth_seconds, 0.0
        self._say = say
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[BaseProcess] = set()
        self._is_broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ordered(
        self,
        function: Callable[[Request], Answer],
        requests: Iterable[Request],
        *,
        what: str,
        of: int,
    ) -> Iterator[tuple[Request, Answer]]:
        """Yield every request with its answer, in the order of the requests."""
        left = iter(requests)
        yield from self._alone(function, left)
        if self._is_broken or self.count < 2:
            yield from ((request, function(request)) for request in left)
            return
        try:
            yield from ahead(
                lambda request: self._started().submit(function, request),
                left,
                AHEAD * self.count,
                lambda request, _: self._redone(function, request),
                (BrokenProcessPool,),
            )
        except GeneratorExit:
            self.close()  # what is still out is of no use to anybody
            raise

    def close(self) -> None:
        """End the processes, whatever they are at."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in set(multiprocessing.active_children()) - self._others:
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)

    def _alone(
        self, function: Callable[[Request], Answer], requests: Iterator[Request]
    ) -> Iterator[tuple[Request, Answer]]:
        """Work here until it would have been worth starting others."""
        while self._pool is None and (self._worked < self._worth or self.count < 2):
            request = next(requests, _NOTHING)
            if request is _NOTHING:
                return
            began = time.monotonic()
            answer = function(request)
            self._worked += time.monotonic() - began
            yield request, answer

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._others = set(multiprocessing.active_children())
            self._pool = ProcessPoolExecutor(
                self.count, mp_context=_context(), initializer=_begin_worker
            )
        return self._pool

    def _redone(self, function: Callable[[Request], Answer], request: Request) -> Answer:
        if not self._is_broken:
            self._is_broken = True
            self._say("a worker process died: its work and the rest is done in this process")
        return function(request)


_NOTHING: Final[Any] = object()


def _context() -> Any:
    """Fork where that is safe, which starts at once; else start afresh."""
    forks = sys.platform == "linux" and threading.active_count() == 1
    return multiprocessing.get_context("fork" if forks else "spawn")


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
