"""The schedule on SQLite and on PostgreSQL: turns, ends, manners, dead letters, clocks that jump."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crawl.stage import NOW, Clock, begun, book_of

from mdr.crawl.enqueueing import ASKED, ROUTINE, enqueue
from mdr.crawl.outcomes import BLAMES, Crawled, Failed, Postponed, failure
from mdr.crawl.rhythm import DAY, FIRST_PERIOD, LONGEST, MAX_ATTEMPTS, is_due
from mdr.errors import UsageError
from mdr.store.schedule import CrawlRow, crawls
from mdr.store.schema import metadata

if TYPE_CHECKING:
    from pathlib import Path

    from mdr.crawl.book import Book
    from mdr.registry.stores import Stores

OK = Crawled(host="github.com", repository="acme/tools", changed=True)
BROKEN = Failed(code="git-failed", message="no route")


def ask(stores: Stores, source: str = "github:acme/tools", priority: int = ASKED) -> CrawlRow:
    return enqueue(stores, source, priority, by="somebody", clock=lambda: NOW)


def only(book: Book) -> CrawlRow:
    (row,) = book.rows()
    return row


def test_the_step_leads_to_the_tables(stores: Stores) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "table" or name in metadata.tables

    with stores.index.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": ours})
        assert compare_metadata(context, metadata) == []
    assert crawls.name in metadata.tables


def test_a_source_that_is_asked_for_is_admitted_once(stores: Stores, book: Book) -> None:
    row = ask(stores)
    assert (row.state, row.due, row.server, row.trusted) == ("waiting", NOW, "github.com", False)
    assert [each.id for each in book.admit(10)] == [row.id]
    assert book.admit(10) == []
    running = book.begin(row.id)
    assert running is not None
    assert (running.state, only(book).run) == ("running", running.run)
    assert book.admit(10) == []


def test_asking_again_changes_only_the_turn(stores: Stores, book: Book, clock: Clock) -> None:
    first = ask(stores, priority=ROUTINE)
    clock.now += 5
    again = enqueue(stores, "https://github.com/ACME/Tools.git", by="other", clock=clock)
    assert (again.id, again.priority, again.requested_by) == (first.id, ASKED, "somebody")
    assert len(book.rows()) == 1


def test_who_asked_is_in_the_audit_trail(stores: Stores) -> None:
    from mdr.registry.events import events

    ask(stores)
    ask(stores)
    found = [
        (each.actor, each.action, each.subject, each.details["new"]) for each in events(stores)
    ]
    assert found == [
        ("somebody", "source.ask", "github.com/acme/tools", True),
        ("somebody", "source.ask", "github.com/acme/tools", False),
    ]


def test_asking_for_what_runs_changes_nothing(stores: Stores, book: Book) -> None:
    row = begun(book, ask(stores).id)
    assert ask(stores).state == "running"
    assert book.finish(row, OK)
    assert only(book).due > NOW + FIRST_PERIOD // 3


def test_what_is_asked_for_goes_first(stores: Stores, book: Book) -> None:
    ids = [ask(stores, f"github:acme/r{n}", priority).id for n, priority in enumerate([0, 100, 50])]
    assert [row.id for row in book.admit(2)] == [ids[1], ids[2]]


def test_change_halves_the_period_and_silence_stretches_it(
    stores: Stores, book: Book, clock: Clock
) -> None:
    crawl = ask(stores).id
    assert book.finish(begun(book, crawl), OK)
    assert (only(book).period, only(book).changed, only(book).priority) == (
        FIRST_PERIOD // 2,
        NOW,
        0,
    )
    clock.now += LONGEST
    silent = Crawled(host="github.com", repository="acme/tools", changed=False)
    assert book.finish(begun(book, crawl), silent)
    assert (only(book).period, only(book).changed) == (FIRST_PERIOD // 2 * 3 // 2, NOW)
    assert book.measure().outcomes == {"changed": 1, "unchanged": 1}


def test_failures_back_off_until_the_source_is_a_dead_letter_that_can_be_raised(
    stores: Stores, book: Book, clock: Clock
) -> None:
    crawl = ask(stores).id
    waits = []
    for _ in range(MAX_ATTEMPTS):
        assert book.finish(begun(book, crawl), BROKEN)
        waits.append(only(book).due - int(clock.now))
        clock.now += 2 * DAY
    assert waits[0] <= 60 < waits[-2] <= DAY
    assert book.admit(10) == []
    (dead,) = book.dead()
    assert (dead.state, dead.code, dead.message) == ("dead", "git-failed", "no route")
    assert (book.measure().dead, book.measure().failing) == (1, 0)
    assert book.retry([dead.id + 1]) == 0
    assert book.retry(None) == 1
    assert (only(book).attempts, begun(book, crawl).state) == (0, "running")


def test_asking_for_a_dead_letter_raises_it(stores: Stores, book: Book) -> None:
    row = begun(book, ask(stores).id)
    assert book.finish(row, Failed(code="source-too-large", message="big", final=True))
    assert only(book).state == "dead"
    assert (ask(stores).state, only(book).attempts) == ("waiting", 0)


def test_one_success_forgets_the_failures(stores: Stores, book: Book, clock: Clock) -> None:
    crawl = ask(stores).id
    assert book.finish(begun(book, crawl), BROKEN)
    assert book.measure().failing == 1
    clock.now += DAY
    assert book.finish(begun(book, crawl), OK)
    assert (only(book).attempts, only(book).code, book.measure().failing) == (0, None, 0)


def test_a_fault_of_our_own_is_not_the_sources(stores: Stores, book: Book) -> None:
    row = begun(book, ask(stores).id)
    assert book.finish(row, Postponed(seconds=60, code="store-unwritable", message="full"))
    assert (only(book).attempts, only(book).state) == (0, "waiting")
    assert NOW + 60 <= only(book).due <= NOW + 66


def test_a_run_that_lost_its_source_ends_nothing(stores: Stores, book: Book) -> None:
    old = begun(book, ask(stores).id)
    assert book.heal() == 1
    new = begun(book, old.id)
    assert not book.finish(old, BROKEN)
    assert (only(book).state, only(book).run) == ("running", new.run)
    assert book.finish(new, OK)
    assert not book.finish(new, BROKEN)
    assert only(book).attempts == 0


def test_heal_spares_what_somebody_works_on(stores: Stores, book: Book) -> None:
    ids = [ask(stores, f"github:acme/r{n}").id for n in range(3)]
    book.admit(2)
    assert book.heal(crawls.c.id == ids[0]) == 1
    assert [row.state for row in book.rows()] == ["queued", "waiting", "waiting"]


def test_a_host_takes_few_at_once_and_others_do_not_wait_for_it(
    stores: Stores, clock: Clock
) -> None:
    book = book_of(stores, clock, at_once=2)
    for number in range(30):
        ask(stores, f"github:acme/r{number:02}")
    other = ask(stores, "https://git.example.org/a/b", ROUTINE)
    admitted = book.admit(10)
    assert [row.server for row in admitted] == ["github.com"] * 2 + ["git.example.org"]
    assert book.admit(10) == []
    first = book.begin(admitted[0].id)
    assert first is not None
    assert book.finish(first, Crawled(host="github.com", repository="acme/r00", changed=False))
    assert [row.server for row in book.admit(10)] == ["github.com"]
    assert other.id == admitted[2].id


def test_starts_at_one_host_keep_their_distance(stores: Stores, clock: Clock) -> None:
    book = book_of(stores, clock, interval=0.75)
    for number in range(10):
        ask(stores, f"github:acme/r{number}")
    starts = [row.start_at for row in book.admit(10)]
    assert starts == [NOW, NOW + 0.75, NOW + 1.5]
    clock.now += 1
    assert [row.start_at for row in book.admit(10)] == [NOW + 2.25, NOW + 3.0]


def test_a_plea_for_patience_silences_the_host_for_all_its_sources(
    stores: Stores, book: Book, clock: Clock
) -> None:
    one, two, other = (
        ask(stores, source).id
        for source in ("github:acme/one", "github:acme/two", "https://git.example.org/a/b")
    )
    admitted = {row.id for row in book.admit(2)}
    assert admitted == {one, two}
    running = book.begin(one)
    assert running is not None
    limited = failure("host-rate-limited", "429", {"retry_after": 600}, 60)
    assert book.finish(running, limited)
    assert book.begin(two) is None
    assert [row.id for row in book.admit(10)] == [other]
    states = {row.id: row for row in book.rows()}
    assert states[one].attempts == states[two].attempts == 0
    assert NOW + 600 <= states[two].due <= NOW + 661
    clock.now += 700
    assert {row.id for row in book.admit(10)} == {one, two}


def test_a_clock_set_back_stops_nothing(stores: Stores, book: Book, clock: Clock) -> None:
    crawl = ask(stores).id
    clock.now = NOW + 3_650 * DAY
    row = begun(book, crawl)
    assert book.finish(
        row, Postponed(seconds=50, code="host-rate-limited", message="", pauses_host=True)
    )
    clock.now = NOW
    held = only(book)
    assert is_due(held.due, held.ended, clock.now)
    assert book.measure().due == 1
    assert book.finish(begun(book, crawl), OK)
    assert only(book).due < NOW + DAY


def test_a_renamed_repository_keeps_one_row(stores: Stores, book: Book) -> None:
    row = begun(book, ask(stores, "github:acme/old").id)
    assert book.finish(row, Crawled(host="github.com", repository="Acme/New", changed=True))
    assert [each.repository_key for each in book.rows()] == ["acme/new"]
    other = ask(stores, "github:acme/older")
    assert book.finish(
        begun(book, other.id), Crawled(host="github.com", repository="acme/new", changed=False)
    )
    assert [each.repository_key for each in book.rows()] == ["acme/new"]


@pytest.mark.parametrize(
    "source",
    [
        "/etc", "file:///etc", ".", "git@github.com:a/b.git", "ssh://git@github.com/a/b", "git://github.com/a/b",
        "http://github.com/a/b", "ext::sh -c true", "github:acme", "https://user:pw@github.com/a/b", "", "-x", "github:../..",
    ],
)  # fmt: skip
def test_a_stranger_may_name_https_only(source: str, stores: Stores, book: Book) -> None:
    with pytest.raises(UsageError):
        enqueue(stores, source, by="stranger")
    assert book.rows() == []


def test_a_stranger_may_not_choose_an_identity(stores: Stores) -> None:
    with pytest.raises(UsageError) as caught:
        enqueue(stores, "https://evil.example/a/b", by="stranger", name_as="NVIDIA/skills")
    assert caught.value.code == "source-local"


def test_what_the_index_holds_is_adopted_once(stores: Stores, book: Book, tmp_path: Path) -> None:
    from mdr.store.engine import writing
    from mdr.store.recording import ensure_source

    with writing(stores.index.engine) as connection:
        ensure_source(connection, "github.com", "acme/disk", str(tmp_path))
        ensure_source(connection, "github.com", "Acme/own", "https://github.com/Acme/own.git")
        ensure_source(connection, "github.com", "acme/alias", "https://git.example.org/x/y")
    assert (book.adopt(), book.adopt()) == (3, 0)
    rows = {row.repository_key: row for row in book.rows()}
    assert (rows["acme/disk"].trusted, rows["acme/disk"].server) == (True, "")
    assert (rows["acme/own"].name_as, rows["acme/own"].server) == (None, "github.com")
    assert rows["acme/alias"].name_as == "github.com/acme/alias"
    assert (rows["acme/alias"].server, rows["acme/alias"].trusted) == ("git.example.org", False)
    assert len(book.admit(10)) == 3


@pytest.mark.parametrize("blame", BLAMES, ids=lambda blame: blame.code)
def test_every_blamed_code_is_treated_as_its_row_says(blame: object) -> None:
    code, fault = getattr(blame, "code", ""), getattr(blame, "fault", "")
    outcome = failure(code, "words", {}, 60)
    if fault == "own":
        assert outcome == Postponed(seconds=60, code=code, message="words")
    else:
        assert outcome == Failed(code=code, message="words", final=True)


def test_other_codes_are_tried_again() -> None:
    assert failure("git-failed", "words", {}, 60) == Failed(code="git-failed", message="words")
    assert failure("host-rate-limited", "w", {"retry_after": "x"}, 60) == Postponed(
        seconds=60, code="host-rate-limited", message="w", pauses_host=True
    )
