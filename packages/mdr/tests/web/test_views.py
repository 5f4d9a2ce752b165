from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta

import pytest
from web_site import BASE, GREET, Site

from mdr.errors import StoreError
from mdr.store.badges import KEPT_DAYS, add_views, views_30d
from mdr.store.engine import writing
from mdr.web.routes import create
from mdr.web.views import ALLOWANCE, BadgeViews, badge_views

DAY = date(2026, 1, 31)


class Book:
    """Takes counts, or refuses them like a database that is down."""

    def __init__(self) -> None:
        self.down = False
        self.total: Counter[tuple[str, date]] = Counter()

    def __call__(self, counts: Mapping[tuple[str, date], int]) -> None:
        if self.down:
            raise StoreError("index-unreadable", "down")
        self.total.update(counts)


def scope(address: str = "192.0.2.1", **headers: str) -> dict[str, object]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"client": (address, 1), "headers": pairs}


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def views(book: Book) -> BadgeViews:
    return BadgeViews(book)


def test_every_load_counts(views: BadgeViews, book: Book) -> None:
    for number in range(30):
        views.add("art_a", f"198.51.100.{number}", DAY)
        views.add("art_b", "198.51.100.1", DAY)
    views.flush()
    assert book.total == {("art_a", DAY): 30, ("art_b", DAY): 30}


def test_a_network_adds_no_more_than_its_allowance_a_day(views: BadgeViews, book: Book) -> None:
    for _ in range(ALLOWANCE * 3):
        views.add("art_a", "192.0.2.7", DAY)
    views.add("art_a", "192.0.2.8", DAY)
    for _ in range(3):
        views.add("art_a", "192.0.2.7", DAY + timedelta(days=1))
    views.flush()
    assert book.total == {("art_a", DAY): ALLOWANCE + 1, ("art_a", DAY + timedelta(days=1)): 3}


def test_addresses_of_one_household_are_one_network(views: BadgeViews, book: Book) -> None:
    for number in range(ALLOWANCE * 2):
        views.add("art_a", f"2001:db8:1:2::{number:x}", DAY)
    views.flush()
    assert book.total["art_a", DAY] == ALLOWANCE


@pytest.mark.parametrize(
    "headers",
    [
        {"purpose": "prefetch"},
        {"sec_purpose": "prefetch;prerender"},
        {"user_agent": "Mozilla/5.0 (compatible; Googlebot/2.1)"},
        {"user_agent": "SomeSpider"},
    ],
)
def test_programs_that_load_for_nobody_do_not_count(
    views: BadgeViews, book: Book, headers: dict[str, str]
) -> None:
    views.seen("art_a", scope(**headers))
    views.seen("art_a", scope(user_agent="github-camo (a1b2)"))
    views.seen("art_a", {"headers": [], "client": None})
    views.seen("art_a", scope() | {"mdr.head": True})
    views.flush()
    assert sum(book.total.values()) == 2


def test_nothing_is_lost_while_the_database_is_down(views: BadgeViews, book: Book) -> None:
    book.down = True
    views.add("art_a", "192.0.2.1", DAY)
    assert not views.flush()
    views.add("art_a", "192.0.2.2", DAY)
    assert not views.flush()
    book.down = False
    assert views.flush()
    assert book.total == {("art_a", DAY): 2}
    assert views.flush()
    assert book.total == {("art_a", DAY): 2}


def test_closing_writes_what_is_left_and_threads_lose_nothing(book: Book) -> None:
    views = BadgeViews(book, every=0.001)
    views.start()

    def load(first: int) -> None:
        for number in range(200):
            views.add("art_a", f"10.{first}.0.{number}", DAY)

    threads = [threading.Thread(target=load, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    views.close()
    assert book.total == {("art_a", DAY): 800}


def test_no_address_is_kept(views: BadgeViews, book: Book) -> None:
    views.add("art_a", "192.0.2.55", DAY)
    kept = repr(vars(views)) + repr(views._seen) + repr(views._counts)
    assert "192.0.2.55" not in kept
    assert all(len(key) == 12 for key in views._seen)


def test_a_badge_counts_with_every_get_a_304_included_and_never_with_head(site: Site) -> None:
    first = site.client.get(f"/badge/{GREET}.svg")
    assert first.headers["cache-control"] == "no-cache, max-age=0"
    assert first.headers["content-type"] == "image/svg+xml; charset=utf-8"
    again = site.client.get(f"/badge/{GREET}.svg", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    site.client.head(f"/badge/{GREET}.svg")
    assert site.client.get("/badge/art_nothing.svg").status_code == 404
    site.views.flush()
    today = date.fromisoformat(_today(site))
    assert views_30d(site.stores.index, [GREET], today) == {GREET: 2}
    assert "2 badge views in 30 days" in site.page(f"/a/{GREET}")


def test_several_processes_add_up(site: Site) -> None:
    from starlette.testclient import TestClient

    other = badge_views(site.stores)
    with TestClient(create(site.service, other), base_url=BASE) as client:
        client.get(f"/badge/{GREET}.svg")
    site.client.get(f"/badge/{GREET}.svg")
    other.flush()
    site.views.flush()
    assert views_30d(site.stores.index, [GREET], date.fromisoformat(_today(site)))[GREET] == 2


def _today(site: Site) -> str:
    """The day under which the counter wrote; the tests do not read the clock a second time."""
    from sqlalchemy import text

    with site.stores.index.reading() as connection:
        return str(connection.execute(text("SELECT max(day) FROM badge_views")).scalar())


def test_the_first_load_of_a_day_forgets_what_is_too_old(site: Site) -> None:
    index, oldest = site.stores.index, DAY - timedelta(days=KEPT_DAYS)
    with writing(index.engine) as connection:
        add_views(connection, {("art_a", oldest + timedelta(days=n)): 1 for n in range(KEPT_DAYS)})
    views = badge_views(site.stores)
    for day, first in ((DAY, 1), (DAY, 1), (DAY + timedelta(days=1), 2)):
        views.add("art_a", "192.0.2.7", day)
        assert views.flush()
        with index.reading() as connection:
            row = connection.exec_driver_sql("SELECT min(day), count(*) FROM badge_views").one()
        assert row == ((oldest + timedelta(days=first)).isoformat(), KEPT_DAYS)
