"""Answer "is this repository unchanged?" without loading SQLAlchemy, which costs more than the answer.

Reads the same tables with the database's own driver, when the index has the schema that this program
knows. Everything else is left to :mod:`mdr.store.index`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdr.artifact.types import Skipped
from mdr.store.engine import HEAD_REVISION
from mdr.store.rows import SourceRow, Totals
from mdr.store.sqlite import read_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Ask = Callable[..., Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the index holds of one repository."""

    source: SourceRow
    totals: Totals
    skipped: tuple[Skipped, ...]
    graded: bool
    """Whether every version has a grade of the ruleset asked about, and search all that it keeps."""


def known_source(
    data: Path, host: str, repository: str, ruleset: str, database: str | None = None
) -> Known | None:
    """Look a repository up.

    Args:
        data: The data folder.
        host: Host, lower case.
        repository: ``owner/repo``; case is ignored.
        ruleset: By which every version should be graded.
        database: ``postgresql://...``; ``None`` means the file in the data folder.

    Returns:
        ``None`` when it is not held, or when the index is not one this can read.
    """
    try:
        with _asking(data, database) as ask:
            return _known(ask, host, repository.lower(), ruleset) if ask is not None else None
    except Exception as error:  # the drivers' errors have no common base
        if (
            not isinstance(error, sqlite3.Error)
            and type(error).__module__.split(".")[0] != "psycopg"
        ):
            raise
        return None


@contextmanager
def _asking(data: Path, database: str | None) -> Iterator[Ask | None]:
    """Open a transaction that sees one state, and give what asks in it."""
    if database is not None:
        import psycopg

        with psycopg.connect(database, connect_timeout=10, application_name="mdr") as remote:
            remote.read_only = True
            remote.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield lambda words, *values: remote.execute(
                words.replace("?", "%s").encode(), values
            ).fetchall()
        return
    path = data / "index.sqlite"
    if not path.exists():
        yield None
        return
    address = f"{path.absolute().as_uri()}?{read_mode(path)}"
    with closing(sqlite3.connect(address, uri=True)) as local:
        local.execute("BEGIN")
        yield lambda words, *values: local.execute(words, values).fetchall()


def _known(ask: Ask, host: str, repository: str, ruleset: str) -> Known | None:
    step = ask("SELECT version_num FROM alembic_version")
    if [row[0] for row in step] != [HEAD_REVISION]:
        return None
    names = SourceRow.__slots__
    rows = ask(
        f"SELECT {', '.join(names)} FROM sources WHERE host = ? AND repository_key = ?",  # noqa: S608 - names of our own fields
        host,
        repository,
    )
    if not rows:
        return None
    source = SourceRow(**dict(zip(names, rows[0], strict=True)))
    return Known(
        source=source,
        totals=_totals(ask, source.id),
        skipped=_skipped(ask, source.id),
        graded=_graded(ask, source.id, ruleset),
    )


def _totals(ask: Ask, source_id: int) -> Totals:
    ((artifacts, versions),) = ask(
        "SELECT count(DISTINCT a.id), count(v.id) FROM artifacts a "
        "JOIN versions v ON v.artifact_id = a.id WHERE a.source_id = ?",
        source_id,
    )
    return Totals(artifacts=artifacts, versions=versions)


def _graded(ask: Ask, source_id: int, ruleset: str) -> bool:
    ungraded = ask(
        "SELECT 1 FROM artifacts a JOIN versions v ON v.artifact_id = a.id "
        "WHERE a.source_id = ? AND NOT EXISTS (SELECT 1 FROM grades g WHERE g.sha256 = v.sha256 "
        "AND g.kind = a.kind AND g.ruleset = ?) LIMIT 1",
        source_id,
        ruleset,
    )
    unread = ask(
        "SELECT 1 FROM artifacts WHERE source_id = ? AND present "
        "AND coalesce(mentions_of, '') <> latest_sha256 LIMIT 1",
        source_id,
    )
    return not ungraded and not unread


def _skipped(ask: Ask, source_id: int) -> tuple[Skipped, ...]:
    rows = ask("SELECT path, reason FROM skips WHERE source_id = ? ORDER BY path", source_id)
    return tuple(Skipped(path=path, reason=reason) for path, reason in rows)
