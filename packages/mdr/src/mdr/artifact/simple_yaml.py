"""The part of YAML that most frontmatter is written in, read by lines.

Keys with one-line values, nested mappings, lists of one-line values, and block scalars of one even
indentation. Anything else is ``None`` and goes to the YAML loader: a value that YAML would type, fold,
escape, comment or continue is never read here. A test holds both readers equal.
"""

from __future__ import annotations

import re
from typing import Final

MAX_SCALAR_CHARS: Final = 16 * 1024
MAX_LEVELS: Final = 6
MAX_LINES: Final = 1_000

Value = str | list[str] | dict[str, "Value"]
KEY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*):(?: +|$)")
LETTERS: Final = r"\u00a1-\u1fff\u2010-\u2027\u2030-\u205e\u2190-\ud7ff"
"""Above ASCII, without what YAML takes for a line end or refuses."""
PLAIN: Final = re.compile(rf"[A-Za-z{LETTERS}][\x20-\x7e{LETTERS}]*")
"""Begins with a letter, so it is no number, date, indicator or quotation."""
QUOTED: Final = re.compile(
    rf"\"([\x20\x21\x23-\x5b\x5d-\x7e{LETTERS}]*)\"|'([\x20-\x26\x28-\x7e{LETTERS}]*)'"
)
"""On one line, without escapes and without doubled quotes."""
BLOCK_LINE: Final = re.compile(rf"[\x21-\x7e{LETTERS}][\x20-\x7e{LETTERS}]*")
BLOCK: Final = {">": (" ", "\n"), ">-": (" ", ""), "|": ("\n", "\n"), "|-": ("\n", "")}
"""Header -> (what joins the lines, what ends the text)."""
TYPED: Final = frozenset({"y", "n", "yes", "no", "true", "false", "on", "off", "null"})


class _NotSimpleError(Exception):
    """The text needs the YAML loader."""


def read_simple(text: str) -> dict[str, Value] | None:
    """Read a block of simple YAML; ``None`` when any line is not simple.

    Args:
        text: YAML with LF line ends.
    """
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if not lines or len(lines) > MAX_LINES:
        return None
    try:
        return _Reader(lines).mapping(0, MAX_LEVELS)
    except _NotSimpleError:
        return None


def scalar(text: str) -> str:
    """Read a one-line value."""
    if len(text) > MAX_SCALAR_CHARS:
        raise _NotSimpleError
    quoted = QUOTED.fullmatch(text)
    if quoted is not None:
        return quoted[1] if quoted[1] is not None else quoted[2]
    if PLAIN.fullmatch(text) is None or ": " in text or " #" in text or text.endswith(":"):
        raise _NotSimpleError
    if text.lower() in TYPED:
        raise _NotSimpleError
    return text


class _Reader:
    """A position in the lines."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._next = 0

    def _indent(self) -> int:
        """Return the indentation of the next line; -1 at the end."""
        if self._next >= len(self._lines):
            return -1
        line = self._lines[self._next]
        body = line.lstrip(" ")
        if not body:
            raise _NotSimpleError
        return len(line) - len(body)

    def _take(self, indent: int) -> str:
        body = self._lines[self._next][indent:].rstrip(" ")
        self._next += 1
        return body

    def mapping(self, indent: int, levels: int) -> dict[str, Value]:
        """Read the keys at one indentation, down to a line that is indented less."""
        values: dict[str, Value] = {}
        while (found := self._indent()) == indent:
            body = self._take(indent)
            key = KEY.match(body)
            if key is None or key[1].lower() in TYPED or key[1] in values or not levels:
                raise _NotSimpleError
            values[key[1]] = self._value(body[key.end() :], indent, levels - 1)
        if found > indent or not values:
            raise _NotSimpleError
        return values

    def _value(self, rest: str, indent: int, levels: int) -> Value:
        if rest in BLOCK:
            return self._block(rest, indent)
        if rest:
            return scalar(rest)
        inner = self._indent()
        is_list = inner >= indent and self._lines[self._next][inner : inner + 2] == "- "
        if is_list:
            return self._list(inner)
        if inner <= indent:
            raise _NotSimpleError
        return self.mapping(inner, levels)

    def _list(self, indent: int) -> list[str]:
        items = []
        while self._indent() == indent and self._lines[self._next][indent : indent + 2] == "- ":
            items.append(scalar(self._take(indent)[2:].lstrip(" ")))
        if self._indent() > indent:
            raise _NotSimpleError
        return items

    def _block(self, header: str, indent: int) -> str:
        inner = self._indent()
        if inner <= indent:
            raise _NotSimpleError
        lines = []
        while (found := self._indent()) == inner:
            lines.append(self._lines[self._next][inner:])
            self._next += 1
        if found > indent or any(BLOCK_LINE.fullmatch(line) is None for line in lines):
            raise _NotSimpleError
        joint, end = BLOCK[header]
        text = joint.join(lines) + end
        if len(text) > MAX_SCALAR_CHARS:
            raise _NotSimpleError
        return text
