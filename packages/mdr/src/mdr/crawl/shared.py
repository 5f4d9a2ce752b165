"""The worker on PostgreSQL: any number of processes on any number of machines, on Procrastinate's queue.

The schedule says what is due; a job says who works on it. Every two seconds one of the workers, whichever
gets the lock, carries what is due from the schedule to the queue and puts right what a kill left behind:

* a job whose worker gave no heartbeat for half a minute is queued again,
* a row that is queued or running and has no job is given back.

Each of these may be done twice or be cut short at any moment: a job's lock is its row, so one repository
has at most one job that waits and one that runs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mdr.crawl.rhythm import MINUTE
from mdr.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from procrastinate import App
    from sqlalchemy import ColumnElement

    from mdr.crawl.crawling import Crawling
    from mdr.store.schedule import CrawlRow

QUEUE: Final = "crawl"
TASK: Final = "mdr.crawl"
SWEEP_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = 5.0
STALLED_SECONDS: Final = 30.0
"""Silence after which a worker counts as dead, by the database's clock."""
AHEAD: Final = 200
"""Most sources carried to the queue in one sweep."""
LONGEST_PAUSE: Final = 60.0
_ALIVE: Final = (
    "EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.lock = 'crawl:' || crawls.id "
    "AND j.status IN ('todo', 'doing'))"
)


class SharedWorker:
    """Implements :class:`mdr.crawl.worker.Worker`."""

    def __init__(
        self, crawling: Crawling, database: str, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        self._crawling = crawling
        self._database = database
        self._stalled = stalled_seconds
        self._sweeps = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; a database that goes away is waited for.

        Raises:
            mdr.errors.UsageError: postgresql-missing.
        """
        import psycopg
        from procrastinate.exceptions import ConnectorException

        gone = (ConnectorException, psycopg.Error, StoreError, OSError)
        self._crawling.say("worker-started")
        pause = 1.0
        while not stop.is_set():
            try:
                await self._work(stop)
                break
            except gone as error:
                code = getattr(error, "code", "database-unreachable")
                self._crawling.say("schedule-unreachable", code=code, pause=pause)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        self._crawling.say("worker-stopped")

    async def _work(self, stop: asyncio.Event) -> None:
        """Run Procrastinate's worker and the sweep until one of them ends."""
        app = self._app()
        async with app.open_async():
            jobs = asyncio.create_task(self._jobs(app), name="jobs")
            sweep = asyncio.create_task(self._sweep_on(app, stop), name="sweep")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            tasks = {jobs, sweep, stopping}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sweep, stopping, jobs):
                    task.cancel()
                ends = await asyncio.gather(sweep, stopping, jobs, return_exceptions=True)
            for end in ends:
                if isinstance(end, Exception):
                    raise end
            if jobs in done and not stop.is_set():  # its side tasks failed: the database went away
                raise StoreError("database-unreachable", "the queue cannot be read")

    async def _jobs(self, app: App) -> None:
        orders = self._crawling.orders
        await app.run_worker_async(
            queues=[QUEUE],
            concurrency=orders.at_once,
            wait=True,
            fetch_job_polling_interval=1.0,
            shutdown_graceful_timeout=orders.grace_seconds,
            delete_jobs="always",
            install_signal_handlers=False,
            update_heartbeat_interval=min(HEARTBEAT_SECONDS, self._stalled / 3),
            stalled_worker_timeout=self._stalled,
        )

    def _app(self) -> App:
        import procrastinate

        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=self._database,
                min_size=1,
                max_size=4,
                timeout=10,
                kwargs={"application_name": "mdr-worker", "connect_timeout": 10},
            )
        )
        crawling = self._crawling

        async def crawl(crawl_id: int) -> None:
            await crawling.crawl(crawl_id)

        app.task(name=TASK, queue=QUEUE)(crawl)
        return app

    async def _sweep_on(self, app: App, stop: asyncio.Event) -> None:
        while True:
            await self._sweep(app)
            if self._crawling.orders.until_idle:
                measures = await asyncio.to_thread(self._crawling.book.measure)
                if not measures.due + measures.queued + measures.running:
                    stop.set()
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sweep(self, app: App) -> None:
        """Carry what is due to the queue, unless another worker is doing so."""
        async with _only_one(self._database) as alone:
            if not alone:
                return
            book = self._crawling.book
            if self._sweeps % MINUTE == 0:
                await asyncio.to_thread(book.adopt)
            self._sweeps += 1
            await self._wake_stalled(app)
            lost = await asyncio.to_thread(book.heal, _alive())
            if lost:
                self._crawling.say("given-back", count=lost)
            admitted = await asyncio.to_thread(book.admit, AHEAD)
            await _defer(app, admitted)

    async def _wake_stalled(self, app: App) -> None:
        from procrastinate.exceptions import ConnectorException

        jobs = await app.job_manager.get_stalled_jobs(
            queue=QUEUE, seconds_since_heartbeat=self._stalled
        )
        for job in jobs:
            with suppress(ConnectorException):  # another one waits already, or it just ended
                await app.job_manager.retry_job(job)
                self._crawling.say("taken-up-again", job=job.id)


async def _defer(app: App, rows: Iterable[CrawlRow]) -> None:
    """Queue a job for each row; one that has a job keeps it."""
    from procrastinate.exceptions import AlreadyEnqueued

    for row in rows:
        name = f"crawl:{row.id}"
        job = app.configure_task(
            TASK, lock=name, queueing_lock=name, priority=row.priority, queue=QUEUE
        )
        with suppress(AlreadyEnqueued):
            await job.defer_async(crawl_id=row.id)


def _alive() -> ColumnElement[bool]:
    from sqlalchemy import literal_column

    column: ColumnElement[bool] = literal_column(_ALIVE)
    return column


class _only_one:  # noqa: N801 - used as a function
    """Hold the lock of the sweep on a connection of its own, if nobody else does."""

    KEY: Final = 0x6D64722D73776570
    """``mdr-swep`` in ASCII."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._connection: Any = None

    async def __aenter__(self) -> bool:
        import psycopg

        try:
            self._connection = await psycopg.AsyncConnection.connect(
                self._database, autocommit=True, connect_timeout=10
            )
            cursor = await self._connection.execute("SELECT pg_try_advisory_lock(%s)", (self.KEY,))
            row = await cursor.fetchone()
        except psycopg.Error as error:
            await self.__aexit__()
            raise StoreError("database-unreachable", "the queue cannot be read") from error
        return bool(row and row[0])

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()
