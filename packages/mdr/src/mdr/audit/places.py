"""Counts up to an offset without reading all that stands before it, however often one asks.

A check may find ten thousand places in one long line. Counting from the beginning for each would be
quadratic; here the text is counted once in stretches, and a question reads at most one stretch.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import Final

STRETCH: Final = 2_048
"""Bytes between two remembered counts."""
CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""Second and later bytes of a character in UTF-8."""
BOM: Final = b"\xef\xbb\xbf"


class Counts:
    """How often some bytes occur before an offset."""

    def __init__(self, data: bytes, mark: bytes) -> None:
        """Keep the text; nothing is counted yet.

        Args:
            data: The text.
            mark: What to count; no part of it can overlap another occurrence.
        """
        self._data = data
        self._mark = mark

    @cached_property
    def _totals(self) -> list[int]:
        reach = len(self._mark) - 1
        starts = range(0, len(self._data), STRETCH)
        counts = (self._data.count(self._mark, max(0, at - reach), at + STRETCH) for at in starts)
        return [0, *accumulate(counts)]

    def before(self, offset: int) -> int:
        """Return how many occurrences end at or before ``offset``."""
        stretch = offset // STRETCH
        first = max(0, stretch * STRETCH - len(self._mark) + 1)
        return self._totals[stretch] + self._data.count(self._mark, first, offset)


class Places:
    """Lines and columns of a text in UTF-8; LF, CRLF and a lone CR each end a line."""

    def __init__(self, data: bytes) -> None:
        """Keep the text."""
        self._data = data
        self._feeds, self._returns = Counts(data, b"\n"), Counts(data, b"\r")
        self._pairs = Counts(data, b"\r\n")
        self._plain = b"\r" not in data

    def of(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column (code points) of an offset."""
        if self._data[offset - 1 : offset + 1] == b"\r\n":
            offset -= 1
        line = self._feeds.before(offset)
        start = self._data.rfind(b"\n", 0, offset) + 1
        if not self._plain:
            line += self._returns.before(offset) - self._pairs.before(offset)
            start = max(start, self._data.rfind(b"\r", start, offset) + 1)
        return line + 1, self._column(start, offset)

    def _column(self, start: int, offset: int) -> int:
        while offset < len(self._data) and self._data[offset] in CONTINUATION:
            offset -= 1
        mark = self._data.startswith(BOM, start) and offset >= start + len(BOM)
        return self._characters(offset) - self._characters(start) + 1 - mark

    @cached_property
    def _leading(self) -> list[int]:
        """Characters that begin before each stretch."""
        cut = range(0, len(self._data), STRETCH)
        counts = (len(self._data[at : at + STRETCH].translate(None, CONTINUATION)) for at in cut)
        return [0, *accumulate(counts)]

    def _characters(self, offset: int) -> int:
        stretch = offset // STRETCH
        rest = self._data[stretch * STRETCH : offset]
        return self._leading[stretch] + len(rest.translate(None, CONTINUATION))
