"""How a host is treated: few crawls at once, a moment between two starts, silence when it asks for it.

The facts are rows of the database, so all workers on all machines share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, insert, select, update

from mdr.store.schedule import crawl_hosts, crawls

if TYPE_CHECKING:
    from sqlalchemy import Connection

HORIZON = 2.0
"""Seconds ahead for which starts are given out."""
MAX_PAUSE = 86_400
"""Longest silence, in seconds; a time farther away comes from a clock that was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """Limits for one host; sources on a disk have none."""

    at_once: int = 4
    interval: float = 0.5
    """Seconds between two starts."""


class Doorkeeper:
    """Gives out starts inside one transaction, host by host."""

    def __init__(self, connection: Connection, manners: Manners, now: float) -> None:
        self._connection = connection
        self._manners = manners
        self._now = now
        self._busy: dict[str, int] = {}
        self._next: dict[str, float] = {}
        self.silent: dict[str, int] = {}
        """Until when hosts that asked for silence take nothing."""
        self.closed: set[str] = set()
        """Hosts that take no more for now."""

    def start(self, server: str) -> float | None:
        """Return when a crawl of ``server`` may start, ``None`` when not within the horizon."""
        if not server:
            return self._now
        if server not in self._next:
            self._load(server)
        at = max(self._now, self._next[server])
        if self._busy[server] >= self._manners.at_once or at > self._now + HORIZON:
            self.closed.add(server)
            return None
        self._busy[server] += 1
        self._next[server] = at + self._manners.interval
        return at

    def save(self) -> None:
        """Write what was given out."""
        for server, at in self._next.items():
            where = crawl_hosts.c.server == server
            self._connection.execute(update(crawl_hosts).where(where).values(next_start=at))

    def _load(self, server: str) -> None:
        until, at = _row(self._connection, server)
        held = (crawls.c.server == server) & crawls.c.state.in_(["queued", "running"])
        count = select(func.count()).select_from(crawls).where(held)
        self._busy[server] = self._connection.execute(count).scalar_one()
        at = at if at <= self._now + MAX_PAUSE else self._now
        until = until if until <= self._now + MAX_PAUSE else 0
        self._next[server] = max(at, until)
        if until > self._now + HORIZON:
            self.silent[server] = until


def pause(connection: Connection, server: str, until: int) -> None:
    """Keep silent towards ``server`` until a time; a longer silence that was agreed on stays."""
    if not server:
        return
    known, _ = _row(connection, server)
    where = crawl_hosts.c.server == server
    connection.execute(update(crawl_hosts).where(where).values(paused_until=max(known, until)))


def paused_until(connection: Connection, server: str, now: float) -> int | None:
    """Return until when ``server`` wants silence, ``None`` when it wants none."""
    where = crawl_hosts.c.server == server
    until = connection.execute(select(crawl_hosts.c.paused_until).where(where)).scalar()
    return until if until is not None and now < until <= now + MAX_PAUSE else None


def _row(connection: Connection, server: str) -> tuple[int, float]:
    """Return (paused until, next start) of a server, whose row is locked until the transaction ends."""
    where = crawl_hosts.c.server == server
    columns = select(crawl_hosts.c.paused_until, crawl_hosts.c.next_start)
    row = connection.execute(columns.where(where).with_for_update()).one_or_none()
    if row is None:
        values = {"server": server, "next_start": 0.0, "paused_until": 0}
        if connection.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            made = postgresql.insert(crawl_hosts).on_conflict_do_nothing()
            connection.execute(made.values(**values))
        else:
            connection.execute(insert(crawl_hosts).values(**values))
        row = connection.execute(columns.where(where).with_for_update()).one()
    return row.paused_until, row.next_start
