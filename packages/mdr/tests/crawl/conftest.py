"""The schedule on both databases, with a clock that tests turn by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crawl.git_web import GitWeb
from crawl.stage import Clock, book_of

from mdr.registry.stores import Stores, open_stores
from mdr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mdr.crawl.book import Book


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A fresh registry on each database."""
    address = None
    if request.param == "postgresql":
        address = request.getfixturevalue("postgres_url")
    return Settings(data=tmp_path / "data", database=address, workers=1)


@pytest.fixture
def stores(settings: Settings) -> Iterator[Stores]:
    found = open_stores(settings, create=True)
    assert found is not None
    yield found
    found.close()


@pytest.fixture
def book(stores: Stores, clock: Clock) -> Book:
    return book_of(stores, clock)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[GitWeb]:
    made = GitWeb(tmp_path / "www")
    yield made
    made.close()
