"""What search on every database has in common: filters, order, facets, pages, mentions.

A subclass brings the words: how documents are kept, and one query that yields the artifacts which fit
them, with a score.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import text

from mdr.store.counting import ANY_GRADE, GRADE, Counted, count, graded_alike
from mdr.store.index import artifact_of
from mdr.store.search import (
    FACETS,
    MAX_LIMIT,
    MAX_WORDS,
    Cursor,
    Hit,
    Page,
    decode_cursor,
    encode_cursor,
    nothing,
    tokens,
)
from mdr.store.spelling import nearest
from mdr.store.together import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from mdr.store.search import Document, Query

Made = TypeVar("Made")
KEY: Final = ("score", "host", "repository_key", "path")
"""What hits are ordered by, and what a cursor holds."""
KEPT: Final = 256
"""Totals, facets and spellings that are remembered until the index changes."""
RANKED: Final = 1_000
"""Hits up to which the whole text ranks; of a word that more texts have, its number in one says little."""
RANKING: Final = 4
"""Words that rank more hits than that: the longest, which say most."""
FILTERS: Final = {
    "kind": "a.kind = :kind",
    "owner": "s.repository_key >= :owner || '/' AND s.repository_key < :owner || '0'",
    "grade": "{grade} = upper(:grade)",
    "license": "lower(s.license) = :license",
    "host": "s.host = :host",
    "mentions": "a.number IN (SELECT m.number FROM mentions m WHERE m.what = 'host' AND m.value = :mentions)",
    "tool": "a.number IN (SELECT m.number FROM mentions m WHERE m.what = 'tool' AND lower(m.value) = :tool)",
}
"""By facet; values are compared in lower case. ``0`` is the character after ``/``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is looked for, in the language of the database."""

    fits: str
    """All of it must be there."""
    any: str
    """Any of it raises the score."""
    ranks: str
    """What raises the score of hits that only ``head`` ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query, as far as it decides what fits."""

    words: Words | None
    values: Mapping[str, Any]
    """Parameters: facets in lower case, ``ruleset``, and the words."""
    state: int
    """Of the index that is asked."""
    grade: str
    """SQL for the grade of an artifact ``a``."""


class TextSearch:
    """Answers queries; a subclass says how words are matched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: dict[tuple[object, ...], Any] = {}

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
        words = _longest(tokens(query.words))
        if query.words.strip() and not words:
            return nothing(query)
        with reading(self._engine) as connection:
            asked, counted = self._fitting(connection, query, words, ruleset)
            return self._page(connection, query, asked, counted, after)

    def _fitting(
        self, connection: Connection, query: Query, words: Sequence[str], ruleset: str
    ) -> tuple[Asked, Counted]:
        """Count what fits; where nothing does, read unknown words as their nearest spellings."""
        told = connection.exec_driver_sql("SELECT changes FROM registry_state WHERE id = 1")
        state, facets = told.scalar_one(), _facets(query) | {"ruleset": ruleset}
        alike = self._remembered(
            (state, "alike", ruleset), lambda: graded_alike(connection, ruleset)
        )
        grade = GRADE if alike else ANY_GRADE
        asked = _asked(self._written(words, {}), facets, state, grade)
        counted = self._counted(connection, asked)
        if words and not counted.total:
            spelled = self._remembered((state, *words), lambda: self._spelled(connection, words))
            if spelled:
                asked = _asked(self._written(words, spelled), facets, state, grade)
                counted = self._counted(connection, asked)
        return asked, counted

    def _counted(self, connection: Connection, asked: Asked) -> Counted:
        """Count, or remember what was counted in the same state of the index."""
        key = (asked.state, *sorted(asked.values.items()))
        everything = len(asked.values) == 1
        return self._remembered(
            key,
            lambda: count(
                connection, self._from(asked), asked.values, asked.grade, everything=everything
            ),
        )

    def _remembered(self, key: tuple[object, ...], make: Callable[[], Made]) -> Made:
        with self._lock:
            kept: Made | None = self._kept.get(key)
        if kept is None:
            kept = make()
            with self._lock:
                if len(self._kept) >= KEPT:
                    self._kept.clear()
                self._kept[key] = kept
        return kept

    def _page(
        self,
        connection: Connection,
        query: Query,
        asked: Asked,
        counted: Counted,
        after: Cursor | None,
    ) -> Page:
        head = after.head if after is not None else counted.total > RANKED
        limit = max(1, min(query.limit, MAX_LIMIT))
        rows = self._rows(connection, asked, after=after, head=head, limit=limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        key = None if last is None else [last[name] for name in KEY]
        return Page(
            total=counted.total,
            hits=tuple(_hit(row) for row in rows[:limit]),
            facets={name: dict(counts) for name, counts in counted.facets.items()},
            next_cursor=None if key is None else encode_cursor(query, key, head=head),
        )

    def _from(self, asked: Asked, *, found: str | None = None, sources: bool = False) -> str:
        """Return SQL for the artifacts ``a`` that fit the words and the filters."""
        start = "FROM artifacts a"
        if asked.words is not None:
            start = f"FROM {found or self._found()}"
        wanted = [
            FILTERS[name].format(grade=asked.grade) for name in FACETS if name in asked.values
        ]
        if sources or any("s." in each for each in wanted):
            start += " JOIN sources s ON s.id = a.source_id"
        return f"{start} WHERE {' AND '.join(['a.present', *wanted])}"

    def _rows(
        self,
        connection: Connection,
        asked: Asked,
        *,
        after: Cursor | None,
        head: bool,
        limit: int,
    ) -> list[dict[str, Any]]:
        """Find the keys of one page first, then everything about these few."""
        given = dict(asked.values) | {"limit": limit}
        order = "k.host, k.repository_key, k.path"
        found, score = self._ranked(head=head) if asked.words is not None else (None, "NULL")
        by_score, past = ("", "") if asked.words is None else ("k.score DESC, ", "")
        if after is not None:
            given |= {f"after_{name}": getattr(after, name) for name in KEY}
            past = f"WHERE {_past(order, scored=asked.words is not None)}"
        held = (
            f"SELECT a.number, {score} AS score, s.host, s.repository_key, a.path "
            f"{self._from(asked, found=found, sources=True)}"
        )
        keys = f"SELECT * FROM ({held}) k {past} ORDER BY {by_score}{order} LIMIT :limit"  # noqa: S608 - fixed words only
        whole = (
            "SELECT a.*, s.host, s.repository, s.repository_key, s.stars, s.license, s.pushed, "  # noqa: S608 - fixed words only
            f"s.branch, s.head, {asked.grade} AS grade_now, k.score FROM ({keys}) k "
            "JOIN artifacts a ON a.number = k.number JOIN sources s ON s.id = a.source_id "
            f"ORDER BY {by_score}{order}"
        )
        return [dict(row) for row in connection.execute(text(whole), given).mappings()]

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

    def _written(self, words: Sequence[str], spelled: Mapping[str, Sequence[str]]) -> Words | None:
        """Write the query: every word, or its nearest spellings."""
        parts = {
            word: self._either(spelled[word]) if word in spelled else self._begins(word)
            for word in words
        }
        if not parts:
            return None
        longest = sorted(parts, key=len, reverse=True)[:RANKING]
        return Words(
            fits=self._all(list(parts.values())),
            any=self._any(list(parts.values())),
            ranks=self._any([parts[word] for word in longest]),
        )

    def _spelled(self, connection: Connection, words: Sequence[str]) -> dict[str, list[str]]:
        """Return the nearest spellings of words that no document has; none when one has none."""
        spelled = {}
        for word in words:
            if not self._known(connection, word):
                spelled[word] = nearest(connection, word, self._documents)
                if not spelled[word]:
                    return {}
        return spelled

    def _found(self) -> str:
        """Return SQL for the artifacts ``a`` that fit ``:match``."""
        raise NotImplementedError

    def _ranked(self, *, head: bool) -> tuple[str, str]:
        """Return SQL for the same and for its score: that of ``:ranks`` in all but the text when ``head``."""
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

    def _any(self, parts: Sequence[str]) -> str:
        raise NotImplementedError


def _asked(words: Words | None, facets: Mapping[str, Any], state: int, grade: str) -> Asked:
    said = {} if words is None else {"match": words.fits, "any": words.any, "ranks": words.ranks}
    return Asked(words=words, values={**facets, **said}, state=state, grade=grade)


def _longest(words: Sequence[str]) -> list[str]:
    """Return each word once, and none that begins another: what fits that one fits this."""
    once = list(dict.fromkeys(words))[:MAX_WORDS]
    return [
        word for word in once if not any(each != word and each.startswith(word) for each in once)
    ]


def _past(order: str, *, scored: bool) -> str:
    """Write SQL for what comes after a cursor."""
    past = f"({order}) > (:after_host, :after_repository_key, :after_path)"
    if scored:
        return f"(k.score < :after_score OR (k.score = :after_score AND {past}))"
    # The second says nothing new, but an index knows it.
    return f"{past} AND (k.host, k.repository_key) >= (:after_host, :after_repository_key)"


def _facets(query: Query) -> dict[str, Any]:
    wanted = {name: getattr(query, name) for name in FACETS}
    return {name: value.lower() for name, value in wanted.items() if value is not None}


def _hit(row: Mapping[str, Any]) -> Hit:
    score = None if row["score"] is None else round(float(row["score"]), 4)
    return Hit(
        artifact=artifact_of(row),
        grade=row["grade_now"],
        sha256=row["latest_sha256"],
        score=score,
        row=row,
    )
