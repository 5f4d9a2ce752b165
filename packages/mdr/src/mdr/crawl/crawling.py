"""One crawl from its place in the queue to what the schedule keeps of it; the same for every kind of worker."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mdr.crawl.isolated import CRAWL_SECONDS, Errand, crawl_apart
from mdr.crawl.manners import HORIZON, Manners
from mdr.crawl.outcomes import Crawled, Failed, Postponed
from mdr.crawl.rhythm import OWN_FAULT_PAUSE
from mdr.errors import MdrError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mdr.crawl.book import Book
    from mdr.crawl.outcomes import Outcome
    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.store.schedule import CrawlRow

LOG = logging.getLogger("mdr.crawl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """How a worker works."""

    at_once: int = 4
    """Crawls at the same time in this process."""
    manners: Manners = field(default_factory=Manners)
    grace_seconds: float = 30.0
    """How long running crawls may take once the worker was told to stop."""
    crawl_seconds: float = CRAWL_SECONDS
    until_idle: bool = False
    """Stop when nothing is due."""
    say: Callable[[str, Mapping[str, Any]], None] | None = None
    """Told what happens: (event, fields)."""


class Crawling:
    """Runs single crawls for one worker."""

    def __init__(self, book: Book, stores: Stores, settings: Settings, orders: Orders) -> None:
        self.book = book
        self.orders = orders
        self._stores = stores
        self._settings = settings

    async def crawl(self, crawl_id: int) -> Outcome | None:
        """Run a queued crawl to its end, whatever the end is.

        Args:
            crawl_id: A row that this worker alone may run.

        Returns:
            How it ended; ``None`` when there was nothing to do any more.

        Raises:
            asyncio.CancelledError: After the source was given back.
            mdr.errors.StoreError: When the schedule itself cannot be reached.
        """
        row = await asyncio.to_thread(self.book.begin, crawl_id)
        if row is None:
            return None
        self.say("crawl-started", row)
        outcome: Outcome = Postponed(seconds=0, code="stopped", message="the worker stops")
        try:
            await _until(row.start_at)
            outcome = await self._outcome(row)
        finally:
            finishing = asyncio.to_thread(self.book.finish, row, outcome)
            believed = await asyncio.shield(finishing)
            self.say("crawl-ended", row, believed=believed, **described(outcome))
        return outcome

    def say(self, event: str, row: CrawlRow | None = None, **fields: Any) -> None:
        """Tell what happens."""
        named = {} if row is None else {"crawl": row.id, "source": row.source, "run": row.run}
        if self.orders.say is not None:
            self.orders.say(event, named | fields)

    async def _outcome(self, row: CrawlRow) -> Outcome:
        try:
            return await self._apart(row)
        except MdrError as error:
            return Postponed(seconds=OWN_FAULT_PAUSE, code=error.code, message=error.message)
        except OSError as error:  # no process can be started
            words = error.strerror or type(error).__name__
            return Postponed(seconds=OWN_FAULT_PAUSE, code="os-error", message=words)
        except Exception as error:
            LOG.exception("a crawl failed by a fault of this program")
            return Failed(code="crawl-bug", message=type(error).__name__)

    async def _apart(self, row: CrawlRow) -> Outcome:
        errand = await asyncio.to_thread(self._errand, row)
        outcome = await crawl_apart(errand, self._progress(row), self._crashed)
        if isinstance(outcome, Crawled):
            await asyncio.to_thread(self._share_limit, outcome)
        return outcome

    def _crashed(self, words: str) -> None:
        LOG.error("the process of a crawl died: %s", words)

    def _share_limit(self, done: Crawled) -> None:
        """Tell all workers when GitHub's API wants silence: it told one crawl, and means all."""
        known = self._stores.index.source(done.host, done.repository)
        if known is not None and known.retry_after is not None:
            self.book.silence(self._api, known.retry_after)

    @property
    def _api(self) -> str:
        return f"api:{urlsplit(self._settings.github_api).hostname or ''}"

    def _errand(self, row: CrawlRow) -> Errand:
        known = self._stores.index.source(row.host, row.repository_key)
        return Errand(
            source=row.source,
            name_as=row.name_as,
            settings=replace(
                self._settings,
                read_only=False,
                registry=None,
                github_silent_until=self.book.silent_until(self._api),
            ),
            known_head=None if known is None else known.head,
            seconds=self.orders.crawl_seconds,
        )

    def _progress(self, row: CrawlRow) -> Callable[[str, int, int], None]:
        """Tell of progress every ten seconds at most."""
        last = time.monotonic()

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= 10:
                last = time.monotonic()
                self.say("crawl-progress", row, stage=stage, done=done, total=total)

        return progress


def described(outcome: Outcome) -> dict[str, Any]:
    """Write an outcome as fields of a log."""
    match outcome:
        case Crawled():
            return {
                "outcome": "changed" if outcome.changed else "unchanged",
                "new_versions": outcome.new_versions,
                "artifacts": outcome.artifacts,
                "seconds": outcome.seconds,
                "notes": list(outcome.notes),
            }
        case Postponed():
            return {"outcome": "postponed", "code": outcome.code, "message": outcome.message}
        case Failed():
            return {"outcome": "failed", "code": outcome.code, "message": outcome.message}


async def _until(start_at: float | None) -> None:
    """Wait for the host's turn; never longer than turns are given out ahead, whatever the clock says."""
    if start_at is not None:
        await asyncio.sleep(min(max(0.0, start_at - time.time()), HORIZON))
