"""Search on SQLite: FTS5 and ``bm25``, the name first, then description, repository and text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, text

from mdr.store.finding import TextSearch
from mdr.store.search import MAX_BODY, tokens
from mdr.store.spelling import LAST, add_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from mdr.store.search import Document


FOUND: Final = "(SELECT rowid AS number FROM search WHERE search MATCH :match LIMIT -1)"
"""The limit keeps it a table of its own."""
SCORED: Final = "SELECT rowid AS number, -bm25(search, 0.0, 10.0, 4.0, 3.0, 1.0) AS score FROM search WHERE search MATCH"
JOINED: Final = "JOIN artifacts a ON a.number = f.number"


class SqliteSearch(TextSearch):
    """Implements :class:`mdr.store.search.SearchIndex`; ``rowid`` is the artifact's number."""

    def refresh(self, connection: Connection, documents: Sequence[Document]) -> None:
        """Replace documents."""
        if not documents:
            return
        rows = [
            {
                "id": each.artifact.id,
                "name": _split(each.artifact.name),
                "description": each.artifact.description or "",
                "repository": _split(each.artifact.repository),
                "body": each.text[:MAX_BODY],
            }
            for each in documents
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
        add_words(
            connection, {word for row in rows for part in row.values() for word in tokens(part)}
        )
        self._mentioned(connection, documents)

    def _found(self) -> str:
        return f"{FOUND} f {JOINED}"

    def _ranked(self, *, head: bool) -> tuple[str, str]:
        if not head:
            return f"({SCORED} :match LIMIT -1) f {JOINED}", "f.score"
        heads = f"({SCORED} '{{name description repository}} : (' || :ranks || ')' LIMIT -1)"
        return (
            f"{FOUND} f LEFT JOIN {heads} r ON r.number = f.number {JOINED}",
            "coalesce(r.score, 0.0)",
        )

    def _known(self, connection: Connection, word: str) -> bool:
        statement = "SELECT 1 FROM search_words WHERE term >= :low AND term < :high LIMIT 1"
        found = connection.execute(text(statement), {"low": word, "high": word + LAST})
        return found.scalar() is not None

    def _documents(self, connection: Connection, terms: Sequence[str]) -> Mapping[str, int]:
        statement = text("SELECT term, doc FROM search_words WHERE term IN :terms")
        wanted = statement.bindparams(bindparam("terms", list(terms), expanding=True))
        return {row.term: row.doc for row in connection.execute(wanted)}

    def _begins(self, word: str) -> str:
        return f'"{word}"*'

    def _either(self, terms: Sequence[str]) -> str:
        return "(" + " OR ".join(f'"{each}"' for each in terms) + ")"

    def _all(self, parts: Sequence[str]) -> str:
        return " AND ".join(parts)

    def _any(self, parts: Sequence[str]) -> str:
        return " OR ".join(parts)


def _split(name: str) -> str:
    return f"{name} {re.sub(r'[^0-9A-Za-z]+', ' ', name)}"
