"""The tables of the crawl schedule: which sources there are, when each is due, how hosts are treated.

They hold numbers of seconds since 1970, not dates, because they are compared with a clock and never shown
as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
)

from mdr.store.schema import metadata

_Words = Text().with_variant(Text(collation="C"), "postgresql")
_Number = Integer().with_variant(BigInteger, "postgresql")

crawls = Table(
    "crawls",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("source", _Words, nullable=False),
    Column("name_as", _Words),
    Column("host", _Words, nullable=False),
    Column("repository_key", _Words, nullable=False),
    Column("server", _Words, nullable=False),
    Column("trusted", Boolean, nullable=False),
    Column("state", _Words, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("period", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("run", _Words),
    Column("start_at", Float),
    Column("started", BigInteger),
    Column("ended", BigInteger),
    Column("changed", BigInteger),
    Column("code", _Words),
    Column("message", _Words),
    Column("requested_by", _Words, nullable=False),
    UniqueConstraint("host", "repository_key"),
    Index(None, "state", "priority", "due"),
    Index(None, "server", "state"),
)
"""One row for every repository that is crawled again and again."""

crawl_hosts = Table(
    "crawl_hosts",
    metadata,
    Column("server", _Words, primary_key=True),
    Column("next_start", Float, nullable=False),
    Column("paused_until", BigInteger, nullable=False),
)
"""When the next crawl of a server may start, and until when it asked to be left alone."""

crawl_counts = Table(
    "crawl_counts",
    metadata,
    Column("outcome", _Words, primary_key=True),
    Column("count", BigInteger, nullable=False),
)
"""How many crawls ended how, since the schedule exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlRow:
    """One row of the schedule."""

    id: int
    source: str
    """What :func:`mdr.source.locate.locate` reads."""
    name_as: str | None
    """``host/owner/repo`` to keep it under, where the source itself does not say."""
    host: str
    repository_key: str
    """``owner/repo``, lower case."""
    server: str
    """The name that is connected to, whose patience all its sources share; empty for a disk."""
    trusted: bool
    """Whether an operator named it, so that it may lie on this machine's disk."""
    state: str
    """``waiting``, ``queued``, ``running`` or ``dead``."""
    priority: int
    """Higher goes first."""
    due: int
    period: int
    """Seconds between two crawls while all goes well."""
    attempts: int
    """Failures in a row."""
    run: str | None
    """The run that holds it; another one's end is not believed."""
    start_at: float | None
    """When the host's manners allow the admitted run to start."""
    started: int | None
    ended: int | None
    changed: int | None
    """When it last brought something new."""
    code: str | None
    """Of the last failure."""
    message: str | None
    requested_by: str


def crawl_row(row: Any) -> CrawlRow:
    """Turn a row's mapping into the value."""
    return CrawlRow(**{name: row[name] for name in CrawlRow.__slots__})
