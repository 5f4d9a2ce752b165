"""Yanks and tombstones as rows: what is withdrawn, and which version is the newest that is not.

A yank is about one label of one artifact: nobody is given it who does not name it. A tombstone is about
bytes, wherever they are: nobody is given them at all. Rows are kept when they are lifted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from mdr.digest import Sha256
from mdr.store.schema import versions, withdrawals
from mdr.version.types import Tombstone, Yanked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

YANK = "yank"
TOMBSTONE = "tombstone"
CHUNK = 500


def active(state: str) -> ColumnElement[bool]:
    """Select withdrawals that nobody lifted."""
    return (withdrawals.c.state == state) & withdrawals.c.lifted_at.is_(None)


def yanks(connection: Connection, ids: Sequence[str]) -> dict[tuple[str, str], Yanked]:
    """Return what is yanked of some artifacts, by (artifact id, label)."""
    found: dict[tuple[str, str], Yanked] = {}
    for start in range(0, len(ids), CHUNK):
        chunk = list(ids[start : start + CHUNK])
        rows = connection.execute(
            select(withdrawals)
            .where(active(YANK), withdrawals.c.artifact_id.in_(chunk))
            .order_by(withdrawals.c.id)
        )
        for row in rows:
            found[row.artifact_id, row.label] = Yanked(reason=row.reason, at=row.at)
    return found


def tombstones(connection: Connection, digests: Iterable[str]) -> dict[Sha256, Tombstone]:
    """Return which of some hashes have a tombstone."""
    found: dict[Sha256, Tombstone] = {}
    names = list(dict.fromkeys(digests))
    for start in range(0, len(names), CHUNK):
        rows = connection.execute(
            select(withdrawals)
            .where(active(TOMBSTONE), withdrawals.c.sha256.in_(names[start : start + CHUNK]))
            .order_by(withdrawals.c.id)
        )
        for row in rows:
            digest = Sha256(row.sha256)
            found[digest] = Tombstone(
                sha256=digest, reason=row.reason, advisory=row.advisory, at=row.at
            )
    return found


def newest_offered(
    connection: Connection, rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Mapping[str, Any]]:
    """Return the version that ``latest`` means, by artifact id.

    Args:
        connection: Anything that can read.
        rows: The rows of ``versions`` of each artifact, oldest first; none is empty.

    Returns:
        The newest that is neither yanked nor under a tombstone; else the newest that is only yanked;
        else the newest.
    """
    yanked = yanks(connection, list(rows))
    buried = tombstones(connection, (row["sha256"] for each in rows.values() for row in each))
    if not yanked and not buried:
        return {key: each[-1] for key, each in rows.items()}

    def rank(key: str, row: Mapping[str, Any]) -> int:
        return 2 if row["sha256"] in buried else int((key, row["label"]) in yanked)

    return {
        key: min(reversed(each), key=lambda row, key=key: rank(key, row))  # type: ignore[misc]
        for key, each in rows.items()
    }


def version_rows(connection: Connection, artifact_id: str) -> list[dict[str, Any]]:
    """Return the rows of ``versions`` of one artifact, oldest first."""
    found = connection.execute(
        select(versions).where(versions.c.artifact_id == artifact_id).order_by(versions.c.position)
    )
    return [dict(row) for row in found.mappings()]
