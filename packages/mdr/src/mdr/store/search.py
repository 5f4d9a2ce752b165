"""Find artifacts by words, with facets and a cursor; words with a typo are read as the nearest known.

The interface is small so that another database can bring its own full-text search. On SQLite it is FTS5:
``bm25`` with the name first, then description, repository and text. A word that no document has is
replaced by the words of the index that differ in one letter (two from eight letters on).
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import text

from mdr.errors import UsageError
from mdr.store.index import artifact_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from mdr.artifact.types import Artifact

FACETS: Final = ("kind", "owner", "grade", "license", "host")
MAX_LIMIT: Final = 100
MAX_WORDS: Final = 16
MAX_BODY: Final = 200_000
"""Characters of a file that are searched; the audit refuses larger files anyway."""
_WORD = re.compile(r"\w+", re.UNICODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a person looks for."""

    words: str = ""
    kind: str | None = None
    owner: str | None = None
    grade: str | None = None
    license: str | None = None
    host: str | None = None
    limit: int = 20
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One artifact found."""

    artifact: Artifact
    grade: str | None
    sha256: str | None
    score: float | None
    """Higher is better; ``None`` without words."""
    row: Mapping[str, Any]
    """What the source says: stars, license, pushed, branch, head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of hits."""

    total: int
    hits: tuple[Hit, ...]
    facets: dict[str, dict[str, int]]
    next_cursor: str | None


class SearchIndex(Protocol):
    """Full-text search over the artifacts that exist at the head of their repository."""

    def refresh(self, connection: Connection, documents: Sequence[tuple[Artifact, str]]) -> None:
        """Replace what is known of some artifacts, inside the transaction that records them."""
        ...

    def search(self, query: Query, ruleset: str) -> Page:
        """Answer a query.

        Raises:
            mdr.errors.UsageError: bad-cursor.
        """
        ...


class SqliteSearch:
    """Implements :class:`SearchIndex` with FTS5."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def refresh(self, connection: Connection, documents: Sequence[tuple[Artifact, str]]) -> None:
        """Replace documents; ``rowid`` is the artifact's number."""
        if not documents:
            return
        rows = [
            {
                "id": artifact.id,
                "name": _split(artifact.name),
                "description": artifact.description or "",
                "repository": _split(artifact.repository),
                "body": body[:MAX_BODY],
            }
            for artifact, body in documents
        ]
        rowid = "(SELECT number FROM artifacts WHERE id = :id)"
        connection.execute(text(f"DELETE FROM search WHERE rowid = {rowid}"), rows)  # noqa: S608 - fixed words
        connection.execute(
            text(
                "INSERT INTO search(rowid, artifact_id, name, description, repository, body) "  # noqa: S608 - fixed words
                f"VALUES ({rowid}, :id, :name, :description, :repository, :body)"
            ),
            rows,
        )

    def search(self, query: Query, ruleset: str) -> Page:
        """Answer a query; facets count the hits of all pages."""
        start = _decode_cursor(query.cursor)
        with self._engine.connect() as connection:
            words = [word.lower() for word in _WORD.findall(query.words)][:MAX_WORDS]
            match = self._match(connection, words)
            if words and match is None:
                return nothing(query)
            rows = self._rows(connection, match, ruleset)
        rows = [row for row in rows if _fits(row, query)]
        limit = max(1, min(query.limit, MAX_LIMIT))
        page = rows[start : start + limit]
        more = start + limit < len(rows)
        return Page(
            total=len(rows),
            hits=tuple(_hit(row) for row in page),
            facets=_facets(rows),
            next_cursor=_encode_cursor(start + limit) if more else None,
        )

    @staticmethod
    def _rows(connection: Connection, match: str | None, ruleset: str) -> list[Mapping[str, Any]]:
        score, join, order = "NULL", "", "s.host, s.repository_key, a.path"
        if match is not None:
            score = "-bm25(search, 0.0, 10.0, 4.0, 3.0, 1.0)"
            join = "JOIN search ON search.rowid = a.number AND search MATCH :match"
            order = f"score DESC, {order}"
        statement = (
            f"SELECT a.*, s.host, s.repository, s.stars, s.license, s.pushed, s.branch, s.head, "  # noqa: S608 - fixed words only
            f"g.grade, {score} AS score FROM artifacts a JOIN sources s ON s.id = a.source_id {join} "
            "LEFT JOIN grades g ON g.sha256 = a.latest_sha256 AND g.kind = a.kind "
            f"AND g.ruleset = :ruleset WHERE a.present ORDER BY {order}"
        )
        values = {"ruleset": ruleset} | ({"match": match} if match is not None else {})
        return [dict(row) for row in connection.execute(text(statement), values).mappings()]

    @staticmethod
    def _match(connection: Connection, words: Sequence[str]) -> str | None:
        """Write the FTS5 query: every word, or its nearest spellings; ``None`` when one is unknown."""
        parts = []
        for word in words:
            known = connection.execute(
                text("SELECT 1 FROM search_words WHERE term >= :low AND term < :high LIMIT 1"),
                {"low": _fold(word), "high": _fold(word) + "\U0010ffff"},
            ).scalar()
            near = (
                [f'"{word}"*']
                if known
                else [f'"{each}"' for each in _nearest(connection, _fold(word))]
            )
            if not near:
                return None
            parts.append(f"({' OR '.join(near)})")
        return " AND ".join(parts) if parts else None


def nothing(query: Query) -> Page:
    """Answer a query that nothing fits.

    Raises:
        mdr.errors.UsageError: bad-cursor.
    """
    _decode_cursor(query.cursor)
    return Page(total=0, hits=(), facets={name: {} for name in FACETS}, next_cursor=None)


def _nearest(connection: Connection, word: str) -> list[str]:
    """Return at most five words of the index with the fewest edits, none beyond the allowance."""
    allowance = 2 if len(word) >= 8 else 1
    if len(word) < 3:
        return []
    rows = connection.execute(
        text("SELECT term, doc FROM search_words WHERE length(term) BETWEEN :low AND :high"),
        {"low": len(word) - allowance, "high": len(word) + allowance},
    )
    scored = [
        (distance, -row.doc, row.term)
        for row in rows
        if (distance := edits(word, row.term, allowance)) is not None
    ]
    best = min((distance for distance, _, _ in scored), default=0)
    return [term for distance, _, term in sorted(scored) if distance == best][:5]


def edits(left: str, right: str, limit: int) -> int | None:
    """Count insertions, deletions, replacements and swaps of neighbours, ``None`` beyond ``limit``."""
    if abs(len(left) - len(right)) > limit or len(set(left) ^ set(right)) > 2 * limit:
        return None
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, char in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(right, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char != other))
            if i > 1 and j > 1 and char == right[j - 2] and left[i - 2] == other:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return None
    return row[-1] if row[-1] <= limit else None


def _fold(word: str) -> str:
    """Write a word as the tokenizer keeps it: lower case, without accents."""
    import unicodedata

    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


def _split(name: str) -> str:
    return f"{name} {re.sub(r'[^0-9A-Za-z]+', ' ', name)}"


def _fits(row: Mapping[str, Any], query: Query) -> bool:
    wanted = {name: getattr(query, name) for name in FACETS}
    return all(
        value is None or (_facet(row, name) or "").lower() == value.lower()
        for name, value in wanted.items()
    )


def _facet(row: Mapping[str, Any], name: str) -> str | None:
    value = row["repository"].partition("/")[0].lower() if name == "owner" else row[name]
    return None if value is None else str(value)


def _facets(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    counts = {name: Counter(_facet(row, name) for row in rows) for name in FACETS}
    return {
        name: {
            value: count
            for value, count in sorted(counter.items(), key=lambda item: (-item[1], item[0] or ""))
            if value is not None
        }
        for name, counter in counts.items()
    }


def _hit(row: Mapping[str, Any]) -> Hit:
    score = None if row["score"] is None else round(float(row["score"]), 4)
    return Hit(
        artifact=artifact_of(row),
        grade=row["grade"],
        sha256=row["latest_sha256"],
        score=score,
        row=row,
    )


def _encode_cursor(start: int) -> str:
    return (
        base64.urlsafe_b64encode(json.dumps({"after": start}).encode()).decode("ascii").rstrip("=")
    )


def _decode_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        start = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))["after"]
        if isinstance(start, int) and 0 <= start < 1 << 53:
            return start
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(
        "bad-cursor",
        "the cursor is not one that a search gave",
        hint="start without a cursor, and pass next_cursor as it is",
    )
