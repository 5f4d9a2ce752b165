"""The worker without PostgreSQL: one process on one data folder, which takes what is due from the schedule.

It holds a lock that the system releases when it dies. Whoever gets the lock knows that nobody works, and
gives back everything that the last one held: no clock and no heartbeat takes part.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from mdr.crawl.rhythm import MINUTE
from mdr.errors import StoreError
from mdr.store.locking import hold

if TYPE_CHECKING:
    from pathlib import Path

    from mdr.crawl.crawling import Crawling

LOOK_SECONDS: Final = 1.0
"""Between two looks at the schedule."""
LONGEST_PAUSE: Final = 60.0
"""Between two tries while the schedule cannot be read."""


class EmbeddedWorker:
    """Implements :class:`mdr.crawl.worker.Worker`."""

    def __init__(self, crawling: Crawling, data: Path) -> None:
        self._crawling = crawling
        self._data = data
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, or until nothing is due when so ordered.

        Raises:
            mdr.errors.StoreError: lock-taken, when another worker has this folder.
        """
        with hold(self._data / "locks" / "worker", wait=False):
            lost = await asyncio.to_thread(self._crawling.book.heal)
            self._crawling.say("worker-started", given_back=lost)
            try:
                await self._work(stop)
            finally:
                await self._end()
                self._crawling.say("worker-stopped")

    async def _work(self, stop: asyncio.Event) -> None:
        pause, looks = LOOK_SECONDS, 0
        while not stop.is_set():
            try:
                if looks % MINUTE == 0:
                    await self._tidy()
                if not await self._look() and self._crawling.orders.until_idle:
                    return
                pause, looks = LOOK_SECONDS, looks + 1
            except StoreError as error:
                pause, looks = min(pause * 2, LONGEST_PAUSE), 0
                self._crawling.say("schedule-unreachable", code=error.code, message=error.message)
            await self._wait(stop, pause)

    async def _tidy(self) -> None:
        """Take in new sources, and give back what no task holds: its end could not be written."""
        from mdr.store.schedule import crawls

        book = self._crawling.book
        await asyncio.to_thread(book.heal, crawls.c.id.in_(list(self._running)))
        await asyncio.to_thread(book.adopt)

    async def _look(self) -> bool:
        """Start what is due; say whether anything is left to do."""
        book, orders = self._crawling.book, self._crawling.orders
        free = orders.at_once - len(self._running)
        admitted = await asyncio.to_thread(book.admit, free) if free > 0 else []
        for row in admitted:
            task = asyncio.create_task(self._one(row.id))
            self._running[row.id] = task
            task.add_done_callback(partial(self._forget, row.id))
        if admitted or self._running:
            return True
        measures = await asyncio.to_thread(book.measure)
        return measures.due > 0

    def _forget(self, crawl_id: int, _task: asyncio.Task[None]) -> None:
        self._running.pop(crawl_id, None)

    async def _one(self, crawl_id: int) -> None:
        try:
            await self._crawling.crawl(crawl_id)
        except StoreError as error:  # the end could not be written; the source is given back later
            self._crawling.say("schedule-unreachable", code=error.code, message=error.message)

    async def _wait(self, stop: asyncio.Event, seconds: float) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                {stopping, *self._running.values()},
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopping.cancel()

    async def _end(self) -> None:
        """Let running crawls end, interrupt those that take too long, and give back the rest."""
        tasks = list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=self._crawling.orders.grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreError):
            await asyncio.to_thread(self._crawling.book.heal)
