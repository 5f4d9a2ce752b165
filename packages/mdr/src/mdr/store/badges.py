"""Loads of badges, by artifact and day: numbers only, nothing about who asked."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import func, select, text

from mdr.store.schema import badge_views
from mdr.store.together import each_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from mdr.store.index import Index

DAYS = 30
KEPT_DAYS = 400
"""Days with loads that :func:`forget_old` leaves; of an artifact, no answer asks for more than 30 days."""
CHUNK = 500


def add_views(connection: Connection, counts: Mapping[tuple[str, date], int]) -> None:
    """Add loads to what was counted, inside a write transaction: all of them, or none.

    Args:
        connection: In a transaction.
        counts: (artifact id, UTC day) -> loads since the last call.
    """
    if not counts:
        return
    rows = [
        {"artifact_id": key, "day": day.isoformat(), "count": count}
        for (key, day), count in sorted(counts.items())
    ]
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    statement = insert(badge_views)
    total = badge_views.c.count + statement.excluded.count
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["artifact_id", "day"], set_={"count": total}
        ),
        rows,
    )


def views_30d(index: Index, artifact_ids: Sequence[str], today: date) -> dict[str, int]:
    """Return the loads of the last 30 days, today included; artifacts without any are 0.

    Raises:
        mdr.errors.StoreError: index-unreadable.
    """
    last = today.isoformat()
    first = (today - timedelta(days=DAYS - 1)).isoformat()

    def ask(wanted: list[str]) -> dict[str, int]:
        found = dict.fromkeys(wanted, 0)
        for start in range(0, len(wanted), CHUNK):
            statement = (
                select(badge_views.c.artifact_id, func.sum(badge_views.c.count))
                .where(badge_views.c.artifact_id.in_(wanted[start : start + CHUNK]))
                .where(badge_views.c.day >= first, badge_views.c.day <= last)
                .group_by(badge_views.c.artifact_id)
            )
            with index.reading() as connection:
                found |= {key: int(count) for key, count in connection.execute(statement)}
        return found

    return each_once(index.engine, f"views until {last}", artifact_ids, ask)


def forget_old(connection: Connection) -> int:
    """Remove what was counted before the newest 400 days that have any; return how many rows went.

    No clock takes part: one that jumps ahead adds a day and takes one away, at most.
    """
    return connection.execute(text(_FORGET), {"kept": KEPT_DAYS}).rowcount


_FORGET = """
DELETE FROM badge_views WHERE day < (
  WITH RECURSIVE days (day, number) AS (
    SELECT max(day), 1 FROM badge_views
    UNION ALL
    SELECT (SELECT max(b.day) FROM badge_views b WHERE b.day < days.day), days.number + 1
    FROM days WHERE days.day IS NOT NULL AND days.number < :kept
  )
  SELECT day FROM days WHERE number = :kept
)
"""
"""From day to day by the index on them, not over all rows."""
