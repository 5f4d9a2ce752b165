"""Answer "is this repository unchanged?" without loading SQLAlchemy, which costs more than the answer.

Reads the same tables with the standard library's driver, when the index is SQLite at the schema this
program knows. Everything else is left to :mod:`mdr.store.index`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.artifact.types import Skipped
from mdr.store.engine import HEAD_REVISION
from mdr.store.rows import SourceRow, Totals
from mdr.store.sqlite import read_mode

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the index holds of one repository."""

    source: SourceRow
    totals: Totals
    skipped: tuple[Skipped, ...]
    graded: bool
    """Whether every version has a grade of the ruleset asked about."""


def known_source(data: Path, host: str, repository: str, ruleset: str) -> Known | None:
    """Look a repository up.

    Args:
        data: The data folder.
        host: Host, lower case.
        repository: ``owner/repo``; case is ignored.
        ruleset: By which every version should be graded.

    Returns:
        ``None`` when it is not held, or when the index is not one this can read.
    """
    path = data / "index.sqlite"
    if not path.exists():
        return None
    names = SourceRow.__slots__
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?{read_mode(path)}", uri=True)
        ) as connection:
            connection.execute("BEGIN")
            if _scalar(connection, "SELECT version_num FROM alembic_version") != HEAD_REVISION:
                return None
            row = connection.execute(
                f"SELECT {', '.join(names)} FROM sources WHERE host = ? AND repository_key = ?",  # noqa: S608 - names of our own fields
                (host, repository.lower()),
            ).fetchone()
            if row is None:
                return None
            source = SourceRow(**dict(zip(names, row, strict=True)))
            return Known(
                source=source,
                totals=_totals(connection, source.id),
                skipped=_skipped(connection, source.id),
                graded=_graded(connection, source.id, ruleset),
            )
    except sqlite3.Error:
        return None


def _totals(connection: sqlite3.Connection, source_id: int) -> Totals:
    row = connection.execute(
        "SELECT count(DISTINCT a.id), count(v.id) FROM artifacts a "
        "JOIN versions v ON v.artifact_id = a.id WHERE a.source_id = ?",
        (source_id,),
    ).fetchone()
    return Totals(artifacts=row[0], versions=row[1])


def _graded(connection: sqlite3.Connection, source_id: int, ruleset: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM artifacts a JOIN versions v ON v.artifact_id = a.id "
        "WHERE a.source_id = ? AND NOT EXISTS (SELECT 1 FROM grades g WHERE g.sha256 = v.sha256 "
        "AND g.kind = a.kind AND g.ruleset = ?) LIMIT 1",
        (source_id, ruleset),
    ).fetchone()
    return row is None


def _skipped(connection: sqlite3.Connection, source_id: int) -> tuple[Skipped, ...]:
    rows = connection.execute(
        "SELECT path, reason FROM skips WHERE source_id = ? ORDER BY path", (source_id,)
    )
    return tuple(Skipped(path=path, reason=reason) for path, reason in rows)


def _scalar(connection: sqlite3.Connection, statement: str) -> object:
    row = connection.execute(statement).fetchone()
    return None if row is None else row[0]
