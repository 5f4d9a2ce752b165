"""Put sources into the schedule: those that somebody asks for, and those that the index already holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, insert, select, update

from mdr.crawl.rhythm import FIRST_PERIOD
from mdr.errors import Refusal, UsageError
from mdr.registry.events import record
from mdr.source.locate import Location, Reach, locate
from mdr.source.ranges import names_inside
from mdr.store.engine import writing
from mdr.store.schedule import CrawlRow, crawl_row, crawls

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from mdr.registry.stores import Stores

ASKED: Final = 100
"""Priority of what a person or a program waits for."""
ROUTINE: Final = 0
OUTSIDE_SCHEMES: Final = frozenset({"https"})
"""Transports that a stranger may name: authenticated, and pinned to checked addresses by every git."""


def enqueue(
    stores: Stores,
    source: str,
    priority: int = ASKED,
    *,
    by: str,
    trusted: bool = False,
    name_as: str | None = None,
    clock: Callable[[], float] = time.time,
) -> CrawlRow:
    """Ask for a source to be crawled soon. Asking again changes at most its turn.

    Args:
        stores: Where the schedule is.
        source: ``github:owner/repo`` or an https URL; of an operator anything ``mdr index`` takes.
        priority: Higher goes first.
        by: Who asks, for the record.
        trusted: Whether an operator asks, who may name disks, other transports and other identities.
        name_as: ``[host/]owner/repo`` to keep it under; of an operator only.
        clock: Seconds since 1970.

    Returns:
        The row; a dead letter that is asked for again is alive again.

    Raises:
        mdr.errors.UsageError: bad-source, credentials-in-url, source-local, source-not-found.
        mdr.errors.Refusal: private-address.
        mdr.errors.StoreError: index-unreadable.
    """
    location = locate_for(source, trusted=trusted, name_as=name_as)
    now = int(clock())
    with writing(stores.index.engine) as connection:
        row = _find(connection, location)
        if row is None:
            values = _new(location, source, name_as, now, priority, by, trusted=trusted)
            _insert(connection, values)
        elif row.state in {"waiting", "dead"}:
            values = {"priority": max(row.priority, priority), "state": "waiting", "due": now}
            values |= {"attempts": 0} if row.state == "dead" else {}
            connection.execute(update(crawls).where(crawls.c.id == row.id).values(**values))
        found = _find(connection, location)
        record(
            connection,
            actor=by,
            action="source.ask",
            subject=f"{location.host}/{location.repository.lower()}",
            details={"source": source, "priority": priority, "new": row is None},
        )
    assert found is not None  # inserted above, or by another at the same moment
    return found


def locate_for(source: str, *, trusted: bool, name_as: str | None = None) -> Location:
    """Say what a source means for one who may name little, or for an operator.

    Raises:
        mdr.errors.UsageError: bad-source, credentials-in-url, source-local, source-not-found.
        mdr.errors.Refusal: private-address.
    """
    if trusted:
        return locate(source, name_as=name_as)
    if name_as is not None or not source.startswith(("github:", "https://")):
        raise UsageError(
            "source-local",
            "only github:owner/repo and https URLs can be asked for from outside",
            hint="an operator can add other sources with mdr worker add",
        )
    location = locate(source)
    assert location.reach is Reach.REMOTE
    assert location.scheme in OUTSIDE_SCHEMES
    if names_inside(location.server):  # what a name means is checked when it is fetched
        raise Refusal(
            "private-address",
            f"{location.server} is not on the public internet",
            hint="an operator can add it with mdr worker add, for workers with --allow-private",
            data={"host": location.server, "addresses": [location.server]},
        )
    return location


def adopt_sources(connection: Connection, now: int) -> int:
    """Put every source of the index that has no row into the schedule, due at once; return how many."""
    from mdr.store.schema import sources

    known = and_(
        crawls.c.host == sources.c.host, crawls.c.repository_key == sources.c.repository_key
    )
    missing = select(sources.c.host, sources.c.repository, sources.c.location).where(
        ~select(crawls.c.id).where(known).exists()
    )
    rows = connection.execute(missing).all()
    for row in rows:
        on_disk = row.location.startswith("/")
        own, server = (None, "") if on_disk else _told_by(row.location)
        named = own != (row.host, row.repository.lower())  # else a rename at the host is followed
        name_as = f"{row.host}/{row.repository}" if named else None
        values = _values(row.location, name_as, row.host, row.repository, server, now)
        values |= {"priority": ROUTINE, "requested_by": "index", "trusted": on_disk}
        _insert(connection, values)
    return len(rows)


def _told_by(address: str) -> tuple[tuple[str, str] | None, str]:
    """Return the identity that an address itself tells, and the server it leads to."""
    try:
        found = locate(address)
    except UsageError:
        return None, ""
    return (found.host, found.repository.lower()), found.server


def _find(connection: Connection, location: Location) -> CrawlRow | None:
    where = and_(
        crawls.c.host == location.host, crawls.c.repository_key == location.repository.lower()
    )
    row = connection.execute(select(crawls).where(where).with_for_update()).mappings().one_or_none()
    return None if row is None else crawl_row(row)


def _new(  # noqa: PLR0917 - the arguments of enqueue
    location: Location,
    source: str,
    name_as: str | None,
    now: int,
    priority: int,
    by: str,
    *,
    trusted: bool,
) -> dict[str, Any]:
    remote = location.reach is Reach.REMOTE
    address = source if remote else location.address
    named = None if name_as is None and remote else f"{location.host}/{location.repository}"
    values = _values(address, named, location.host, location.repository, location.server, now)
    return values | {"priority": priority, "requested_by": by, "trusted": trusted}


def _values(  # noqa: PLR0917 - columns of one row
    source: str, name_as: str | None, host: str, repository: str, server: str, now: int
) -> dict[str, Any]:
    return {
        "source": source,
        "name_as": name_as,
        "host": host,
        "repository_key": repository.lower(),
        "server": server.lower(),
        "state": "waiting",
        "due": now,
        "period": FIRST_PERIOD,
        "attempts": 0,
    }


def _insert(connection: Connection, values: dict[str, Any]) -> None:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        connection.execute(postgresql.insert(crawls).on_conflict_do_nothing().values(**values))
    else:
        connection.execute(insert(crawls).values(**values))
