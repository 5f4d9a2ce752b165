"""What search on every database has in common: filters, order, facets, pages, mentions.

A subclass brings the words: how documents are kept, and one query that yields the artifacts which fit
them, with a score.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from mdr.store.engine import one_state, unreadable
from mdr.store.index import CHUNK, artifact_of
from mdr.store.schema import sources
from mdr.store.search import (
    FACETS,
    MAX_LIMIT,
    MAX_VALUES,
    MAX_WORDS,
    Hit,
    Page,
    decode_cursor,
    encode_cursor,
    nothing,
    tokens,
)
from mdr.store.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from mdr.store.search import Document, Query

Counts = tuple[int, dict[str, dict[str, int]]]
KEY: Final = ("score", "host", "repository_key", "path")
"""What hits are ordered by, and what a cursor holds."""
KEPT: Final = 256
"""Totals and facets that are remembered until the index changes."""
GRADES: Final = (
    "LEFT JOIN grades g ON g.sha256 = a.latest_sha256 AND g.kind = a.kind AND g.ruleset = :ruleset"
)
FILTERS: Final = {
    "kind": "a.kind = :kind",
    "owner": "s.repository_key >= :owner || '/' AND s.repository_key < :owner || '0'",
    "grade": "lower(g.grade) = :grade",
    "license": "lower(s.license) = :license",
    "host": "s.host = :host",
    "mentions": "EXISTS (SELECT 1 FROM mentions m WHERE m.artifact_id = a.id AND m.what = 'host' AND m.value = :mentions)",
    "tool": "EXISTS (SELECT 1 FROM mentions m WHERE m.artifact_id = a.id AND m.what = 'tool' AND lower(m.value) = :tool)",
}
"""By facet; values are compared in lower case. ``0`` is the character after ``/``."""
MENTIONED: Final = {"host": "mentions", "tool": "tool"}
"""What the table ``mentions`` keeps -> the facet that counts it."""


class TextSearch:
    """Answers queries; a subclass says how words are matched."""

    joined: ClassVar[str]
    """SQL that joins ``f`` to ``a``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: dict[tuple[object, ...], Counts] = {}

    def forget(self) -> None:
        """Count totals and facets anew from now on."""
        with self._lock:
            self._kept.clear()

    def search(self, query: Query, ruleset: str) -> Page:
        """Answer a query from one state of the index.

        Raises:
            mdr.errors.UsageError: bad-cursor.
            mdr.errors.StoreError: index-unreadable, database-unreachable, database-busy.
        """
        after = decode_cursor(query)
        try:
            with self._engine.connect() as opened:
                connection = one_state(opened)
                words = list(dict.fromkeys(tokens(query.words)))[:MAX_WORDS]
                match = self._match(connection, words)
                if (words and match is None) or (query.words.strip() and not words):
                    return nothing(query)
                values = _values(query)
                if match is not None:
                    values["match"] = match
                return self._page(connection, query, values, ruleset, after)
        except SQLAlchemyError as error:
            raise unreadable(error) from error

    def _page(
        self,
        connection: Connection,
        query: Query,
        values: dict[str, Any],
        ruleset: str,
        after: tuple[float | None, str, str, str] | None,
    ) -> Page:
        total, facets = self._counts(connection, values, ruleset)
        limit = max(1, min(query.limit, MAX_LIMIT))
        rows = self._rows(connection, values, ruleset, after=after, limit=limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        key = None if last is None else [last[name] for name in KEY]
        return Page(
            total=total,
            hits=tuple(_hit(row) for row in rows[:limit]),
            facets={name: dict(counts) for name, counts in facets.items()},
            next_cursor=None if key is None else encode_cursor(query, key),
        )

    def _from(self, values: Mapping[str, Any], *, scored: bool) -> str:
        """Return SQL for the artifacts ``a`` that fit the words, with their sources, and filters."""
        found = "FROM artifacts a"
        if "match" in values:
            found = f"FROM {self._found(scored=scored)} JOIN artifacts a ON {self.joined}"
        wanted = [FILTERS[name] for name in FACETS if name in values]
        grades = GRADES if "grade" in values else ""
        where = " AND ".join(["a.present", *wanted])
        return f"{found} JOIN sources s ON s.id = a.source_id {grades} WHERE {where}"

    def _rows(
        self,
        connection: Connection,
        values: Mapping[str, Any],
        ruleset: str,
        *,
        after: tuple[float | None, str, str, str] | None,
        limit: int,
    ) -> list[dict[str, Any]]:
        """Find the keys of one page first, then everything about these few."""
        given = dict(values) | {"limit": limit, "ruleset": ruleset}
        scored = "match" in values
        order, past = "s.host, s.repository_key, a.path", ""
        if after is not None:
            given |= {f"after_{name}": value for name, value in zip(KEY, after, strict=True)}
            past = f"({order}) > (:after_host, :after_repository_key, :after_path)"
            if scored:
                past = f"(f.score < :after_score OR (f.score = :after_score AND {past}))"
            past = f" AND {past}"
        by_score, score = ("f.score DESC, ", "f.score") if scored else ("", "NULL")
        keys = (
            f"SELECT a.number, {score} AS score {self._from(values, scored=True)}{past} "
            f"ORDER BY {by_score}{order} LIMIT :limit"
        )
        whole = (
            "SELECT a.*, s.host, s.repository, s.repository_key, s.stars, s.license, s.pushed, "  # noqa: S608 - fixed words only
            f"s.branch, s.head, g.grade, k.score FROM ({keys}) k JOIN artifacts a ON a.number = k.number "
            f"JOIN sources s ON s.id = a.source_id {GRADES} "
            f"ORDER BY {by_score.replace('f.', 'k.')}{order}"
        )
        return [dict(row) for row in connection.execute(text(whole), given).mappings()]

    def _counts(self, connection: Connection, values: Mapping[str, Any], ruleset: str) -> Counts:
        """Count, or remember what was counted in the same state of the index."""
        state = connection.exec_driver_sql(
            "SELECT changes FROM registry_state WHERE id = 1"
        ).scalar()
        key = (state, ruleset, *sorted(values.items()))
        with self._lock:
            kept = self._kept.get(key)
        if kept is None:
            kept = self._count(connection, values, ruleset)
            with self._lock:
                if len(self._kept) >= KEPT:
                    self._kept.clear()
                self._kept[key] = kept
        return kept

    def _count(self, connection: Connection, values: Mapping[str, Any], ruleset: str) -> Counts:
        given = dict(values) | {"ruleset": ruleset}
        fitting = (
            f"SELECT a.id, a.source_id, a.kind, a.latest_sha256 {self._from(values, scored=False)}"
        )
        groups = connection.execute(
            text(
                f"SELECT a.source_id, a.kind, g.grade, count(*) FROM ({fitting}) a {GRADES} "  # noqa: S608 - fixed words
                "GROUP BY 1, 2, 3"
            ),
            given,
        ).all()
        counters: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
        owners = _owners(connection, {row[0] for row in groups})
        for source_id, kind, grade, count in groups:
            told = {"kind": kind, "grade": grade, **owners[source_id]}
            for name, value in told.items():
                if value is not None:
                    counters[name][value] += count
        within = f" WHERE m.artifact_id IN (SELECT a.id {self._from(values, scored=False)})"
        mentioned = connection.execute(
            text(
                f"SELECT m.what, m.value, count(*) FROM mentions m{within if values else ''} GROUP BY 1, 2"  # noqa: S608 - fixed words
            ),
            given,
        )
        for what, value, count in mentioned:
            if what in MENTIONED:
                counters[MENTIONED[what]][value] += count
        total = sum(row[3] for row in groups)
        return total, {name: _told(counter) for name, counter in counters.items()}

    def _mentioned(self, connection: Connection, documents: Sequence[Document]) -> None:
        """Replace what the offered versions of some artifacts name."""
        ids = [{"id": each.artifact.id} for each in documents]
        connection.execute(text("DELETE FROM mentions WHERE artifact_id = :id"), ids)
        rows = [
            {"id": each.artifact.id, "what": what, "value": value}
            for each in documents
            for what, found in (("host", each.hosts), ("tool", each.tools))
            for value in sorted(set(found))
        ]
        if rows:
            connection.execute(
                text("INSERT INTO mentions (artifact_id, what, value) VALUES (:id, :what, :value)"),
                rows,
            )
        connection.execute(
            text("UPDATE artifacts SET mentions_of = :sha256 WHERE id = :id"),
            [{"id": each.artifact.id, "sha256": each.sha256} for each in documents],
        )

    def _match(self, connection: Connection, words: Sequence[str]) -> str | None:
        """Write the query: every word, or its nearest spellings; ``None`` when one is unknown."""
        parts = []
        for word in words:
            if self._known(connection, word):
                parts.append(self._begins(word))
            elif near := nearest(connection, word, self._documents):
                parts.append(self._either(near))
            else:
                return None
        return self._all(parts) if parts else None

    def _found(self, *, scored: bool) -> str:
        """Return SQL for a table ``f(artifact_id, score)`` of what fits ``:match``."""
        raise NotImplementedError

    def _known(self, connection: Connection, word: str) -> bool:
        """Say whether a document has a word that begins so."""
        raise NotImplementedError

    def _documents(self, connection: Connection, terms: Sequence[str]) -> Mapping[str, int]:
        """Count the documents of some words."""
        raise NotImplementedError

    def _begins(self, word: str) -> str:
        raise NotImplementedError

    def _either(self, terms: Sequence[str]) -> str:
        raise NotImplementedError

    def _all(self, parts: Sequence[str]) -> str:
        raise NotImplementedError


def _owners(connection: Connection, source_ids: set[int]) -> dict[int, dict[str, str | None]]:
    """Return the facets that some sources give all their artifacts."""
    found: dict[int, dict[str, str | None]] = {}
    ids = sorted(source_ids)
    for start in range(0, len(ids), CHUNK):
        columns = select(sources.c.id, sources.c.host, sources.c.repository_key, sources.c.license)
        rows = connection.execute(columns.where(sources.c.id.in_(ids[start : start + CHUNK])))
        found |= {
            row.id: {
                "owner": row.repository_key.partition("/")[0],
                "license": row.license,
                "host": row.host,
            }
            for row in rows
        }
    return found


def _values(query: Query) -> dict[str, Any]:
    wanted = {name: getattr(query, name) for name in FACETS}
    return {name: value.lower() for name, value in wanted.items() if value is not None}


def _told(counter: Counter[str]) -> dict[str, int]:
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:MAX_VALUES])


def _hit(row: Mapping[str, Any]) -> Hit:
    score = None if row["score"] is None else round(float(row["score"]), 4)
    return Hit(
        artifact=artifact_of(row),
        grade=row["grade"],
        sha256=row["latest_sha256"],
        score=score,
        row=row,
    )
