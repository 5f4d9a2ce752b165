"""Search on PostgreSQL: a ``tsvector`` a document under a GIN index.

The words are cut here, not by the server's parser, so that they are the same as on SQLite whatever
languages and dictionaries the server has: no stemming, no stop words, no special treatment of addresses
and paths.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from mdr.store.finding import TextSearch
from mdr.store.search import MAX_BODY, tokens
from mdr.store.spelling import add_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from mdr.store.search import Document

WEIGHTS: Final = "{0.1, 0.3, 0.4, 1.0}"
"""Of text, repository, description and name."""
JOINED: Final = "JOIN artifacts a ON a.number = f.number"
MAX_POSITION: Final = 16_383
MAX_PLACES: Final = 255
"""Places of one word that are kept; the server has room for so many."""
MAX_LENGTH: Final = 500
"""Characters of a word that is searched."""


class PostgresSearch(TextSearch):
    """Implements :class:`mdr.store.search.SearchIndex`."""

    def refresh(self, connection: Connection, documents: Sequence[Document]) -> None:
        """Replace documents, in the order of their ids, as every writer does."""
        if not documents:
            return
        ordered = sorted(documents, key=lambda each: each.artifact.id)
        vectors = [(each.artifact.id, _places(each)) for each in ordered]
        connection.execute(
            text(
                "INSERT INTO search_documents (artifact_id, content) "
                "VALUES (:id, CAST(:content AS tsvector)) "
                "ON CONFLICT (artifact_id) DO UPDATE SET content = excluded.content"
            ),
            [{"id": key, "content": _vector(places)} for key, places in vectors],
        )
        add_words(connection, {word for _, places in vectors for word in places})
        self._mentioned(connection, ordered)

    def _found(self) -> str:
        return f"{_found()} {JOINED}"

    def _ranked(self, *, head: bool) -> tuple[str, str]:
        if head:
            return f"{_found(scored=True)} {JOINED}", "f.score"
        texts = "JOIN search_documents d ON d.artifact_id = a.id"
        score = f"ts_rank('{WEIGHTS}', d.content, CAST(:any AS tsquery))"
        return f"{_found()} {JOINED} {texts}", f"CAST({score} AS double precision)"

    def _known(self, connection: Connection, word: str) -> bool:
        return self._has(connection, [self._begins(word)])[0] > 0

    def _documents(self, connection: Connection, terms: Sequence[str]) -> Mapping[str, int]:
        numbers = self._has(connection, [f"'{each}'" for each in terms])
        return {term: number for term, number in zip(terms, numbers, strict=True) if number}

    def _has(self, connection: Connection, queries: Sequence[str]) -> list[int]:
        """Count the documents of several queries."""
        statement = (
            f"SELECT (SELECT count(*) FROM {_found('CAST(q.words AS tsquery)')}) "  # noqa: S608 - fixed words
            "FROM unnest(CAST(:queries AS text[])) WITH ORDINALITY AS q(words, number) ORDER BY q.number"
        )
        return list(connection.execute(text(statement), {"queries": list(queries)}).scalars())

    def _begins(self, word: str) -> str:
        return f"'{word[:MAX_LENGTH]}':*"

    def _either(self, terms: Sequence[str]) -> str:
        return "(" + " | ".join(f"'{each}'" for each in terms) + ")"

    def _all(self, parts: Sequence[str]) -> str:
        return " & ".join(parts)

    def _any(self, parts: Sequence[str]) -> str:
        return " | ".join(parts)


def _found(fits: str = "CAST(:match AS tsquery)", *, scored: bool = False) -> str:
    """Return SQL for what fits, with a score by :ranks in all but the text when ``scored``."""
    ranks = "CAST(:ranks AS tsquery)" if scored else fits
    return f"search_found({fits}, {ranks}, '{WEIGHTS}', {str(scored).lower()}) f"


def _places(document: Document) -> dict[str, list[str]]:
    """Return where each word is, with the weight of the part it is in."""
    artifact = document.artifact
    parts = (
        ("A", artifact.name),
        ("B", artifact.description or ""),
        ("C", artifact.repository),
        ("", document.text[:MAX_BODY]),
    )
    found: dict[str, list[str]] = {}
    number = count(1)
    for weight, part in parts:
        for word in tokens(part):
            places = found.setdefault(word[:MAX_LENGTH], [])
            if len(places) < MAX_PLACES:
                places.append(f"{min(next(number), MAX_POSITION)}{weight}")
    return found


def _vector(places: Mapping[str, Sequence[str]]) -> str:
    """Write a ``tsvector``; words have letters and digits only, so that nothing needs an escape."""
    return " ".join(f"'{word}':{','.join(where)}" for word, where in places.items())
