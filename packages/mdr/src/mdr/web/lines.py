"""A file line by line, as the audit counts lines, with what was found beside each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdr.web.unseen import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from markupsafe import Markup

MAX_LINES: Final = 10_000
MAX_BYTES: Final = 1 << 20
MAX_LINE: Final = 5_000
"""Characters of one line that are shown."""
_ENDS: Final = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A finding of the audit, beside a line."""

    status: str
    title: str
    column: int | None
    shown: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a file."""

    number: int
    html: Markup
    cut: bool
    """Whether the line is longer than what is shown."""
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of a file, all of them unless ``cut``."""

    lines: tuple[Line, ...]
    cut: bool
    ends: str
    """``LF``, ``CRLF``, ``CR`` or ``mixed line ends``."""


def lines_of(data: bytes, notes: Mapping[int, tuple[Note, ...]]) -> Lines:
    r"""Cut a file into lines.

    Args:
        data: The bytes; what is not UTF-8 is shown as ``\xNN``.
        notes: Findings by 1-based line.
    """
    text = data[:MAX_BYTES].decode("utf-8", "backslashreplace").removeprefix("\ufeff")
    kinds = sorted(set(_ENDS.findall(text)))
    rows = _ENDS.split(text)
    if not rows[-1]:
        rows.pop()
    names = {"\n": "LF", "\r\n": "CRLF", "\r": "CR"}
    return Lines(
        lines=tuple(
            Line(
                number=number,
                html=shown(row[:MAX_LINE]),
                cut=len(row) > MAX_LINE,
                notes=notes.get(number, ()),
            )
            for number, row in enumerate(rows[:MAX_LINES], start=1)
        ),
        cut=len(rows) > MAX_LINES or len(data) > MAX_BYTES,
        ends="mixed line ends" if len(kinds) > 1 else names[kinds[0]] if kinds else "LF",
    )


def notes_of(audit: Mapping[str, Any]) -> dict[int, tuple[Note, ...]]:
    """Sort the findings of an Audit document by line."""
    return _by_line(
        (
            finding["line"],
            Note(
                status=finding["status"],
                title=check["title"],
                column=finding["column"],
                shown=finding["shown"],
                why=finding["why"],
            ),
        )
        for check in audit["checks"]
        for finding in check["findings"]
    )


def folder_notes_of(audit: Mapping[str, Any], path: str) -> dict[int, tuple[Note, ...]]:
    """Sort what the folder's audit says about one of its files by line; the file as a whole is line 1."""
    return _by_line(
        (
            finding["line"] or 1,
            Note(
                status=finding["status"],
                title=finding["rule"],
                column=finding["column"],
                shown=finding["shown"],
                why=finding["why"],
            ),
        )
        for finding in (audit["bundle"] or {"findings": ()})["findings"]
        if finding["path"] == path
    )


def _by_line(found: Iterable[tuple[int, Note]]) -> dict[int, tuple[Note, ...]]:
    lines: dict[int, tuple[Note, ...]] = {}
    for line, note in found:
        lines[line] = (*lines.get(line, ()), note)
    return lines
