"""The audit trail: who changed what, when; rows are added in the transaction that does the change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from mdr.registry.stores import Stores

MAX_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the trail."""

    id: int
    """Grows; later events have larger ones."""
    at: str
    """RFC 3339 UTC, ``Z``."""
    actor: str
    """Who: the name of a token, or of a person at the command line."""
    action: str
    """Such as ``version.yank`` or ``token.issue``."""
    subject: str
    """About what: a reference, a hash, the id of a token."""
    details: Mapping[str, Any]


def now() -> str:
    """Return the present second, RFC 3339 UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def record(
    connection: Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Add a line, inside the write transaction of what it tells.

    Args:
        connection: In a transaction.
        actor: Who.
        action: What, as ``noun.verb``.
        subject: About what.
        details: JSON types only; never a secret.
    """
    from sqlalchemy import insert, text

    from mdr.store.schema import events as table

    if connection.dialect.name == "postgresql":  # so that ids are committed in their order
        connection.execute(text("LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE"))
    values = {
        "at": now(),
        "actor": actor,
        "action": action,
        "subject": subject,
        "details": json.dumps(dict(details or {}), ensure_ascii=False, sort_keys=True),
    }
    connection.execute(insert(table).values(**values))


def events(stores: Stores, *, after: int | None = None, limit: int = 100) -> tuple[Event, ...]:
    """Return lines of the trail, oldest first.

    Args:
        stores: Where.
        after: The id of the last line seen before.
        limit: At most so many, and never more than 1,000.

    Raises:
        mdr.errors.StoreError: index-unreadable.
    """
    from sqlalchemy import select

    from mdr.store.schema import events as table

    statement = (
        select(table)
        .where(table.c.id > (after or 0))
        .order_by(table.c.id)
        .limit(max(1, min(limit, MAX_LIMIT)))
    )
    with stores.index.reading() as connection:
        rows = [dict(row) for row in connection.execute(statement).mappings()]
    return tuple(Event(**{**row, "details": json.loads(row["details"])}) for row in rows)
