"""What search on every database has in common: filters, order, facets, pages, mentions.

A subclass brings the words: how documents are kept, and one query that yields the artifacts which fit
them, with a score.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from mdr.store.engine import one_state, unreadable
from mdr.store.index import artifact_of
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
KEPT: Final = 256
"""Totals and facets that are remembered until the index changes."""
FROM: Final = (
    "FROM {found} JOIN artifacts a ON a.id = f.artifact_id JOIN sources s ON s.id = a.source_id "
    "LEFT JOIN grades g ON g.sha256 = a.latest_sha256 AND g.kind = a.kind AND g.ruleset = :ruleset "
    "WHERE a.present"
)
EVERYTHING: Final = FROM.replace(
    "FROM {found} JOIN artifacts a ON a.id = f.artifact_id", "FROM artifacts a"
)
FILTERS: Final = {
    "kind": "a.kind = :kind",
    "owner": "s.repository_key >= :owner || '/' AND s.repository_key < :owner || '0'",
    "grade": "lower(g.grade) = :grade",
    "license": "lower(s.license) = :license",
    "host": "EXISTS (SELECT 1 FROM mentions m WHERE m.artifact_id = a.id AND m.what = 'host' AND m.value = :host)",
    "tool": "EXISTS (SELECT 1 FROM mentions m WHERE m.artifact_id = a.id AND m.what = 'tool' AND lower(m.value) = :tool)",
}
"""By facet; values are compared in lower case. ``0`` is the character after ``/``."""


class TextSearch:
    """Answers queries; a subclass says how words are matched."""

    owner: ClassVar[str]
    """SQL for the owner of ``s``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: dict[tuple[object, ...], Counts] = {}

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
                words = tokens(query.words)[:MAX_WORDS]
                match = self._match(connection, words)
                if (words and match is None) or (query.words.strip() and not words):
                    return nothing(query)
                values = _values(query) | {"ruleset": ruleset}
                where = " AND ".join(
                    [EVERYTHING if match is None else FROM]
                    + [FILTERS[name] for name in FACETS if name in values]
                )
                if match is not None:
                    values["match"] = match
                return self._page(connection, query, where, values, after)
        except SQLAlchemyError as error:
            raise unreadable(error) from error

    def _page(
        self,
        connection: Connection,
        query: Query,
        where: str,
        values: Mapping[str, Any],
        after: tuple[float | None, str, str, str] | None,
    ) -> Page:
        total, facets = self._counts(connection, where, values)
        limit = max(1, min(query.limit, MAX_LIMIT))
        scored = "match" in values
        rows = self._rows(connection, where, values, scored=scored, after=after, limit=limit + 1)
        hits = tuple(_hit(row) for row in rows[:limit])
        more = len(rows) > limit
        last = rows[limit - 1] if more else None
        return Page(
            total=total,
            hits=hits,
            facets={name: dict(counts) for name, counts in facets.items()},
            next_cursor=None
            if last is None
            else encode_cursor(
                query, (last["score"], last["host"], last["repository_key"], last["path"])
            ),
        )

    def _rows(
        self,
        connection: Connection,
        where: str,
        values: Mapping[str, Any],
        *,
        scored: bool,
        after: tuple[float | None, str, str, str] | None,
        limit: int,
    ) -> list[dict[str, Any]]:
        given = dict(values) | {"limit": limit}
        order, past = "s.host, s.repository_key, a.path", ""
        if after is not None:
            given |= dict(zip(("after_score", "after_host", "after_repository", "after_path"), after, strict=True))  # fmt: skip
            past = f"({order}) > (:after_host, :after_repository, :after_path)"
            if scored:
                past = f"(f.score < :after_score OR (f.score = :after_score AND {past}))"
            past = f" AND {past}"
        score = "f.score" if scored else "NULL"
        if scored:
            order = f"f.score DESC, {order}"
        statement = (
            "SELECT a.*, s.host, s.repository, s.repository_key, s.stars, s.license, s.pushed, "
            f"s.branch, s.head, g.grade, {score} AS score "
            f"{where.format(found=self._found(scored=True))}{past} ORDER BY {order} LIMIT :limit"
        )
        return [dict(row) for row in connection.execute(text(statement), given).mappings()]

    def _counts(self, connection: Connection, where: str, values: Mapping[str, Any]) -> Counts:
        """Count, or remember what was counted in the same state of the index."""
        state = connection.exec_driver_sql(
            "SELECT changes FROM registry_state WHERE id = 1"
        ).scalar()
        key = (state, where, *sorted(values.items()))
        with self._lock:
            kept = self._kept.get(key)
        if kept is None:
            kept = self._count(connection, where.format(found=self._found(scored=False)), values)
            with self._lock:
                if len(self._kept) >= KEPT:
                    self._kept.clear()
                self._kept[key] = kept
        return kept

    def _count(self, connection: Connection, where: str, values: Mapping[str, Any]) -> Counts:
        names = f"a.kind, {self.owner} AS owner, g.grade, s.license"
        groups = connection.execute(
            text(f"SELECT {names}, count(*) {where} GROUP BY 1, 2, 3, 4"),
            values,
        )
        counters: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
        total = 0
        for *found, count in groups:
            total += count
            for name, value in zip(("kind", "owner", "grade", "license"), found, strict=True):
                if value is not None:
                    counters[name][value] += count
        mentioned = connection.execute(
            text(
                "SELECT m.what, m.value, count(*) FROM mentions m WHERE m.artifact_id IN "  # noqa: S608 - fixed words
                f"(SELECT a.id {where}) GROUP BY 1, 2"
            ),
            values,
        )
        for what, value, count in mentioned:
            if what in counters:
                counters[what][value] += count
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
