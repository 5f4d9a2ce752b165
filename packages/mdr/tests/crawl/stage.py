"""What tests of the schedule share: a clock that is turned by hand, and steps that need no worker."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from mdr.crawl.book import Book
from mdr.crawl.manners import Manners

if TYPE_CHECKING:
    from mdr.registry.stores import Stores
    from mdr.store.schedule import CrawlRow

NOW = 1_767_225_600


@dataclass
class Clock:
    """Seconds since 1970, as told."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


def book_of(stores: Stores, clock: Clock, **manners: float) -> Book:
    limits = Manners(**{"at_once": 100, "interval": 0.0} | manners)  # type: ignore[arg-type]  # numbers of the right kind
    return Book(stores.index.engine, manners=limits, clock=clock, chance=Random(1))  # noqa: S311 - tests repeat


def begun(book: Book, crawl_id: int) -> CrawlRow:
    """Take a source through the queue into a run."""
    assert crawl_id in [row.id for row in book.admit(100)]
    row = book.begin(crawl_id)
    assert row is not None
    return row
