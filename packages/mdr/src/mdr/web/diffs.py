"""A unified diff as rows of a table: both line numbers, and the words that changed inside a line."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from mdr.web.unseen import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ROWS: Final = 4_000
MAX_WORDS: Final = 400
"""Words of a line up to which its changed words are marked: comparing takes time that grows faster."""
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]", re.UNICODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a diff."""

    kind: str
    """``file``, ``hunk``, ``note``, ``both``, ``added`` or ``removed``."""
    before: int | None
    """Line number in the older version."""
    after: int | None
    text: str
    html: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a diff, all of them unless ``cut``."""

    rows: tuple[Row, ...]
    cut: bool


def table_of(unified: str) -> Table:
    """Turn a unified diff into rows.

    Args:
        unified: As :attr:`mdr.registry.compare.Comparison.unified` writes it, several files in a row.
    """
    lines = unified.split("\n")[:-1]
    rows = list(_rows(lines[:MAX_ROWS]))
    _mark_words(rows)
    return Table(rows=tuple(rows), cut=len(lines) > MAX_ROWS)


def _rows(lines: list[str]) -> Iterator[Row]:
    before = after = 0
    inside = False
    for number, line in enumerate(lines):
        hunk = _HUNK.match(line)
        if hunk is not None:
            before, after, inside = int(hunk.group(1)), int(hunk.group(2)), True
            yield _row("hunk", line)
        elif line.startswith("--- ") and _is_header(lines, number):
            inside = False
            yield _row("file", line)
        elif line.startswith("+++ ") and not inside:
            yield _row("file", line)
        elif inside and line.startswith("+"):
            yield _row("added", line[1:], after=after)
            after += 1
        elif inside and line.startswith("-"):
            yield _row("removed", line[1:], before=before)
            before += 1
        elif inside and line.startswith(" "):
            yield _row("both", line[1:], before=before, after=after)
            before, after = before + 1, after + 1
        else:
            yield _row("note", line)


def _is_header(lines: list[str], number: int) -> bool:
    """Tell the header of a file from a removed line that begins with two dashes."""
    following = lines[number + 1 : number + 3]
    return (
        len(following) == 2
        and following[0].startswith("+++ ")
        and _HUNK.match(following[1]) is not None
    )


def _row(kind: str, text: str, *, before: int | None = None, after: int | None = None) -> Row:
    return Row(kind=kind, before=before, after=after, text=text, html=shown(text))


def _mark_words(rows: list[Row]) -> None:
    """Mark the changed words where as many lines were removed as were added."""
    start = 0
    while start < len(rows):
        middle = _run(rows, start, "removed")
        end = _run(rows, middle, "added")
        if middle - start == end - middle and middle > start:
            for offset in range(middle - start):
                one, two = rows[start + offset], rows[middle + offset]
                left, right = _words(one.text, two.text)
                rows[start + offset] = replace(one, html=left)
                rows[middle + offset] = replace(two, html=right)
        start = max(end, start + 1)


def _run(rows: list[Row], start: int, kind: str) -> int:
    end = start
    while end < len(rows) and rows[end].kind == kind:
        end += 1
    return end


def _words(before: str, after: str) -> tuple[Markup, Markup]:
    """Return both lines with what only one of them has marked, or unmarked when little is the same."""
    from difflib import SequenceMatcher

    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if max(len(old), len(new)) > MAX_WORDS:
        return shown(before), shown(after)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < 0.4:  # two lines that have nothing to do with each other
        return shown(before), shown(after)
    left, right = Markup(), Markup()
    for kind, a, b, c, d in matcher.get_opcodes():
        left += _marked("del", old[a:b], kind)
        right += _marked("ins", new[c:d], kind)
    return left, right


def _marked(tag: str, words: list[str], kind: str) -> Markup:
    html = shown("".join(words))
    if kind == "equal" or not html:
        return html
    return Markup(f"<{tag}>{html}</{tag}>")  # noqa: S704 - escaped by shown
