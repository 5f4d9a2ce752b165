"""Find artifacts by words, with facets and a cursor: what is asked, what is answered, and by whom.

The same contract on every database (:class:`SearchIndex`): each word must fit somewhere, its beginning is
enough, case and accents do not count; the name weighs most, then description, repository and text, which
ranks a thousand hits and no more. Where nothing fits, a word that no document has is read as the nearest
words that some have (:mod:`mdr.store.spelling`). Totals and facets are exact, over all pages.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mdr.digest import sha256
from mdr.store.cursor import bad_cursor, read_cursor, write_cursor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256

FACETS: Final = ("kind", "owner", "grade", "license", "host", "tool", "mentions")
"""``host`` is the repository's; ``tool`` and ``mentions`` count artifacts whose latest version names a tool or
a host, of which it may name several."""
MAX_VALUES: Final = 100
"""Values of one facet that are told, the most frequent first; their counts are exact."""
MAX_LIMIT: Final = 100
MAX_WORDS: Final = 16
MAX_BODY: Final = 200_000
"""Characters of a file that are searched; the audit refuses larger files anyway."""
_TOKEN = re.compile(r"[^\W_]+", re.UNICODE)
_ABOVE = re.compile("[\u0300-\U0010ffff]+")
"""Where combining characters are; they are looked for nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a person looks for."""

    words: str = ""
    kind: str | None = None
    owner: str | None = None
    grade: str | None = None
    license: str | None = None
    host: str | None = None
    """Where the repository is."""
    tool: str | None = None
    """A tool that the file asks for."""
    mentions: str | None = None
    """A host that the file names."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What is known by words of one artifact's offered version."""

    artifact: Artifact
    text: str
    sha256: Sha256 | None = None
    """Of the version; ``None`` when its bytes are withdrawn."""
    hosts: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class SearchIndex(Protocol):
    """Full-text search over the artifacts that exist at the head of their repository."""

    def refresh(self, connection: Connection, documents: Sequence[Document]) -> None:
        """Replace what is known of some artifacts, inside the transaction that records them."""
        ...

    def search(self, query: Query, ruleset: str) -> Page:
        """Answer a query.

        Raises:
            mdr.errors.UsageError: bad-cursor.
            mdr.errors.StoreError: index-unreadable, database-unreachable, database-busy.
        """
        ...

    def forget(self) -> None:
        """Count totals and facets anew from now on; they are right without this, too."""
        ...


def search_index(engine: Engine) -> SearchIndex:
    """Return the search of a database."""
    if engine.dialect.name == "postgresql":
        from mdr.store.search_postgres import PostgresSearch

        return PostgresSearch(engine)
    from mdr.store.search_sqlite import SqliteSearch

    return SqliteSearch(engine)


def fold(text: str) -> str:
    """Write text as words are compared: lower case, without accents."""
    lower = text.lower()
    if lower.isascii():
        return lower
    return _ABOVE.sub(_without_marks, unicodedata.normalize("NFD", lower))


def _without_marks(found: re.Match[str]) -> str:
    return "".join(char for char in found[0] if not unicodedata.combining(char))


def tokens(text: str) -> list[str]:
    """Cut text into folded words of letters and digits, in their order."""
    return _TOKEN.findall(fold(text))


def nothing(query: Query) -> Page:
    """Answer a query that nothing fits.

    Raises:
        mdr.errors.UsageError: bad-cursor.
    """
    decode_cursor(query)
    return Page(total=0, hits=(), facets={name: {} for name in FACETS}, next_cursor=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last hit before a page."""

    score: float | None
    host: str
    repository_key: str
    path: str
    head: bool
    """Whether the text was left out of the score, which pages of one search must agree on."""


def encode_cursor(query: Query, key: Sequence[object], *, head: bool = False) -> str:
    """Write where a page ended: the sort key of its last hit, and which query it belongs to."""
    return write_cursor({"after": list(key), "of": _mark(query, head=head)})


def decode_cursor(query: Query) -> Cursor | None:
    """Read the last hit before the page.

    Raises:
        mdr.errors.UsageError: bad-cursor.
    """
    if query.cursor is None:
        return None
    try:
        found = read_cursor(query.cursor)
        score, host, repository, path = found["after"]
        texts = all(
            isinstance(each, str) and b"\x00" not in each.encode()  # a lone surrogate: ValueError
            for each in (host, repository, path)
        )
        finite = isinstance(score, float) and math.isfinite(score)
        scored = finite if tokens(query.words) else score is None
        marks = {_mark(query, head=each): each for each in (False, True)}
        if texts and scored and found["of"] in marks:
            head = marks[found["of"]]
            return Cursor(score=score, host=host, repository_key=repository, path=path, head=head)
    except (ValueError, KeyError, TypeError):
        pass
    raise bad_cursor("search", along=", with the same words and facets")


def _mark(query: Query, *, head: bool) -> str:
    asked = [query.words, *(getattr(query, name) for name in FACETS)]
    return sha256(json.dumps(asked).encode())[:8] + ("h" if head else "")
