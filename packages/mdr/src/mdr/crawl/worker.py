"""Choose and run the worker that fits the registry: one process on SQLite, any number on PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from mdr.crawl.book import Book
from mdr.crawl.crawling import Crawling

if TYPE_CHECKING:
    from mdr.crawl.crawling import Orders
    from mdr.registry.stores import Stores
    from mdr.settings import Settings


class Worker(Protocol):
    """Crawls what is due, until it is told to stop."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; running crawls then get their grace, and no source is lost."""
        ...


def worker_for(settings: Settings, stores: Stores, orders: Orders) -> Worker:
    """Return the worker that fits where the index is."""
    book = Book(stores.index.engine, manners=orders.manners)
    crawling = Crawling(book, stores, settings, orders)
    if settings.database is None:
        from mdr.crawl.embedded import EmbeddedWorker

        return EmbeddedWorker(crawling, settings.data)
    from mdr.crawl.shared import SharedWorker

    return SharedWorker(crawling, settings.database)


async def run_until_told(worker: Worker) -> None:
    """Run a worker; SIGTERM and SIGINT stop it in order, a second one at once.

    Raises:
        mdr.errors.StoreError: lock-taken.
    """
    stop = asyncio.Event()
    task = asyncio.ensure_future(worker.run(stop))

    def told() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(each, told)
    with suppress(asyncio.CancelledError):
        await task
