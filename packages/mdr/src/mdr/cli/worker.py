"""``mdr worker``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from mdr.cli.options import (
    counted,
    json_option,
    place_options,
    print_document,
    say,
    store_options,
    talk,
)
from mdr.errors import UsageError

if TYPE_CHECKING:
    from mdr.crawl.book import Book
    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.store.schedule import CrawlRow


@click.group("worker", invoke_without_command=True)
@click.option("--at-once", type=click.IntRange(1, 256), default=4, show_default=True, help="Crawls at the same time in this process.")  # fmt: skip
@click.option("--per-host", type=click.IntRange(1, 256), default=4, show_default=True, help="Crawls of one host at the same time, over all workers.")  # fmt: skip
@click.option("--host-interval", type=click.FloatRange(0, 3600), default=0.5, show_default=True, help="Seconds between two starts at one host, over all workers.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0, 3600), default=30, show_default=True, help="Seconds that running crawls may take when told to stop.")  # fmt: skip
@click.option("--crawl-seconds", type=click.FloatRange(1), default=3600, show_default=True, help="Longest crawl of one repository.")  # fmt: skip
@click.option("--once", is_flag=True, help="Crawl what is due and stop.")
@click.option("--allow-private", is_flag=True, help="Let sources lead to private addresses.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of /metrics.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Answer Prometheus there.")
@place_options
@store_options
def command(*, settings: Settings, **options: Any) -> int:
    """Crawl the sources of the registry again and again.

    Without --database one process works on the data folder; with PostgreSQL any number of workers on
    any number of machines share the queue. SIGTERM stops in order: running crawls get their grace, the
    rest is given back. Without a command it works until it is told to stop.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return 0
    _refuse_registry(settings)
    return _work(replace(settings, allow_private=options["allow_private"]), options)


@command.command("status")
@json_option
@place_options
@store_options
def status_command(*, as_json: bool, settings: Settings) -> int:
    """Say what waits, runs and failed."""
    with _opened(settings) as stores:
        measures = _book(stores).measure()
    if as_json:
        print_document("mdr.worker-status/1", asdict(measures))
        return 0
    say(
        f"{measures.due:,} of {measures.waiting:,} waiting sources are due, the oldest since "
        f"{measures.oldest_due_seconds:,} s; {measures.queued:,} queued, {measures.running:,} running, "
        f"{measures.failing:,} failing, {measures.dead:,} dead"
    )
    for outcome, number in sorted(measures.outcomes.items()):
        say(f"  {outcome}: {number:,}")
    return 0


@command.command("dead", short_help="List the sources that are not tried any more.")
@json_option
@place_options
@store_options
def dead_command(*, as_json: bool, settings: Settings) -> int:
    """List the sources that are not tried any more, each with its last error; exit 1 when there are any."""
    with _opened(settings) as stores:
        rows = _book(stores).dead()
    if as_json:
        print_document("mdr.worker-dead/1", {"items": [_document(row) for row in rows]})
    for row in () if as_json else rows:
        say(f"{row.id}  {row.source}  [{row.code}] {row.message} (failures: {row.attempts})")
    if not rows and not as_json:
        talk("no dead letters")
    if rows and not as_json:
        talk("mdr worker retry ID... tries again; --all tries all of them")
    return 1 if rows else 0


@command.command("retry")
@click.argument("ids", nargs=-1, type=int, metavar="[ID...]")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@place_options
@store_options
def retry_command(*, ids: tuple[int, ...], everything: bool, settings: Settings) -> int:
    """Let dead sources be tried again at once."""
    if bool(ids) == everything:
        raise UsageError("usage", "name ids, or --all", hint="mdr worker dead lists them")
    with _opened(settings) as stores:
        number = _book(stores).retry(None if everything else ids)
    say(f"{counted(number, 'source')} will be tried again")
    return 0 if everything or number == len(set(ids)) else 1


@command.command("add")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--as", "name_as", metavar="OWNER/REPO", help="Keep it under this name; one SOURCE only.")  # fmt: skip
@json_option
@place_options
@store_options
def add_command(
    *, sources: tuple[str, ...], name_as: str | None, as_json: bool, settings: Settings
) -> int:
    """Put sources into the schedule, due at once and before all others."""
    from mdr.crawl.enqueueing import enqueue

    if name_as is not None and len(sources) > 1:
        raise UsageError("usage", "--as names one source", hint="add the sources one by one")
    with _opened(settings) as stores:
        rows = [
            enqueue(stores, each, by="operator", trusted=True, name_as=name_as) for each in sources
        ]
    if as_json:
        print_document("mdr.worker-add/1", {"items": [_document(row) for row in rows]})
    else:
        say(f"{counted(len(rows), 'source')} will be crawled next")
    return 0


def _work(settings: Settings, options: dict[str, Any]) -> int:
    import asyncio

    from mdr.crawl.crawling import Orders
    from mdr.crawl.manners import Manners
    from mdr.crawl.metrics import serve
    from mdr.crawl.worker import run_until_told, worker_for
    from mdr.serving.logs import JsonLog, adopt_library_logs

    log = JsonLog(requests=False)
    adopt_library_logs(log)
    orders = Orders(
        at_once=options["at_once"],
        manners=Manners(at_once=options["per_host"], interval=options["host_interval"]),
        grace_seconds=options["grace"],
        crawl_seconds=options["crawl_seconds"],
        until_idle=options["once"],
        say=lambda event, fields: log.event("info", event, **fields),
    )
    with _opened(settings) as stores:
        if options["metrics_port"] is not None:
            serve(_book(stores), options["metrics_host"], options["metrics_port"])
        asyncio.run(run_until_told(worker_for(settings, stores, orders)))
    return 0


def _opened(settings: Settings) -> Any:
    from contextlib import closing

    from mdr.registry.stores import open_stores

    _refuse_registry(settings)
    stores = open_stores(settings, create=True)
    assert stores is not None  # create
    return closing(stores)


def _refuse_registry(settings: Settings) -> None:
    if settings.registry is not None:
        raise UsageError(
            "registry-read-only",
            "a worker writes to its own stores, and --registry or MDR_REGISTRY names another place",
            hint="use --data DIR, --database and --blobs, without a registry",
        )


def _book(stores: Stores) -> Book:
    from mdr.crawl.book import Book

    return Book(stores.index.engine)


def _document(row: CrawlRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "source": row.source,
        "host": row.host,
        "repository": row.repository_key,
        "state": row.state,
        "attempts": row.attempts,
        "due": _date(row.due),
        "ended": _date(row.ended),
        "code": row.code,
        "message": row.message,
        "requested_by": row.requested_by,
    }


def _date(seconds: int | None) -> str | None:
    from datetime import UTC, datetime

    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
