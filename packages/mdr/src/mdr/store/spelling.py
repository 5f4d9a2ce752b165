"""The nearest words that some document has, found without reading them all.

One edit is an insertion, a deletion, a replacement or a swap of neighbours. Words of three letters and
more may have one, words of eight and more two. A word with one edit keeps its first or its last half (a
swap across the middle is tried by itself), so two ranges of the index find every candidate: one over the
words, one over the words spelled backward. With two edits it is the first or the last third: what damages
both ends of a word at once is not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sqlalchemy import func, select, text

from mdr.store.schema import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

LAST = "\U0010ffff"
MOST = 5
"""Spellings that stand for one word."""
CHECKED = 50
"""Candidates of one distance whose documents are counted."""


class Counter(Protocol):
    """Counts the documents that have a word now; the table of words forgets nothing."""

    def __call__(self, connection: Connection, terms: Sequence[str]) -> Mapping[str, int]:
        """Return the number of documents of each word that has any."""
        ...


def nearest(connection: Connection, word: str, count: Counter) -> list[str]:
    """Return at most five words with the fewest edits, those of most documents first."""
    allowance = 2 if len(word) >= 8 else 1
    if len(word) < 3:
        return []
    by_distance: dict[int, list[str]] = {}
    for term in _candidates(connection, word, allowance):
        distance = edits(word, term, allowance)
        if distance is not None:
            by_distance.setdefault(distance, []).append(term)
    for distance in sorted(by_distance):
        counts = count(connection, sorted(by_distance[distance])[:CHECKED])
        found = sorted(counts, key=lambda term: (-counts[term], term))
        if found:
            return found[:MOST]
    return []


def add_words(connection: Connection, terms: Iterable[str]) -> None:
    """Remember words; in their order, so that two transactions never wait for each other crosswise."""
    wanted = sorted(set(terms))
    if not wanted:
        return
    if connection.dialect.name == "postgresql":  # one statement: a round trip a word takes minutes
        statement = (
            "INSERT INTO words (term, backward) SELECT t.term, reverse(t.term) "
            'FROM unnest(CAST(:terms AS text[])) AS t(term) ORDER BY t.term COLLATE "C" '
            "ON CONFLICT DO NOTHING"
        )
        connection.execute(text(statement), {"terms": wanted})
        return
    rows = [{"term": term, "backward": term[::-1]} for term in wanted]
    connection.execute(text("INSERT OR IGNORE INTO words VALUES (:term, :backward)"), rows)


def _candidates(connection: Connection, word: str, allowance: int) -> set[str]:
    size = max(1, len(word) // (allowance + 1))
    near = func.length(words.c.term).between(len(word) - allowance, len(word) + allowance)
    choices: list[ColumnElement[bool]] = [
        (words.c.term >= word[:size]) & (words.c.term < word[:size] + LAST) & near,
        (words.c.backward >= word[: -size - 1 : -1])
        & (words.c.backward < word[: -size - 1 : -1] + LAST)
        & near,
        words.c.term.in_(list(_swapped(word))),
    ]
    if allowance == 1:  # the longer half as well, when the word has an odd length
        tail = word[: size - 1 : -1]
        choices[1] = (words.c.backward >= tail) & (words.c.backward < tail + LAST) & near
    found: set[str] = set()
    for where in choices:
        found |= set(connection.execute(select(words.c.term).where(where)).scalars())
    return found


def _swapped(word: str) -> Iterator[str]:
    for place in range(len(word) - 1):
        yield word[:place] + word[place + 1] + word[place] + word[place + 2 :]


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
