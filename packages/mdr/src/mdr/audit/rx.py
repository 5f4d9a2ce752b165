"""RE2 patterns over bytes, compiled on first use.

Every content pattern of the audit is RE2: matching time is linear in the input whatever the input is.
Counted gaps such as ``{0,80}`` are avoided in patterns, because each count is a state and hostile
input can make RE2's automaton fall back to its slow form; distances are checked on the match instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

Spans = Sequence[tuple[int, int]]
"""(start, end) of the match and of each group; (-1, -1) for a group that took no part."""
Engine = tuple[Callable[[Any, bytes, int, int], Spans], Any, Any]
"""(finds places, argument for a match anywhere, argument for a match at the start)."""


class Match:
    """Where a pattern matched. RE2's own match objects ask the engine again at each look."""

    __slots__ = ("_data", "_spans")

    def __init__(self, data: bytes, spans: Spans) -> None:
        """Keep the text and the places."""
        self._data = data
        self._spans = spans

    def start(self, group: int = 0) -> int:
        """Offset of the first byte; -1 when the group took no part."""
        return self._spans[group][0]

    def end(self, group: int = 0) -> int:
        """Offset behind the last byte; -1 when the group took no part."""
        return self._spans[group][1]

    def group(self, group: int = 0) -> bytes | None:
        """The matched bytes."""
        start, end = self._spans[group]
        return None if start < 0 else self._data[start:end]


class Rx:
    """A pattern that is compiled when it is first used, so that importing a check imports no RE2."""

    def __init__(self, pattern: bytes, *, utf8: bool = False, longest: bool = False) -> None:
        """Keep the pattern.

        Args:
            pattern: RE2 syntax. Bytes match bytes unless ``utf8``.
            utf8: Read the pattern and the text as UTF-8, for classes of characters.
            longest: Leftmost-longest instead of leftmost-first.
        """
        self.pattern = pattern
        self._utf8 = utf8
        self._longest = longest

    @cached_property
    def _compiled(self) -> Any:
        import re2

        options = re2.Options()
        encoding = re2.Options.Encoding
        options.encoding = encoding.UTF8 if self._utf8 else encoding.LATIN1
        options.longest_match = self._longest
        options.log_errors = False
        options.max_mem = 64 << 20
        return re2.compile(self.pattern, options=options)

    @cached_property
    def _engine(self) -> Engine:
        """Return what finds places, and how to tell it where a match may begin.

        RE2's Python module reads its own match objects slowly, so the extension below it is called;
        where a release of the module has no such thing, its public functions do the same.
        """
        compiled = self._compiled
        try:
            from re2 import _re2

            find, anchor = compiled._regexp.Match, _re2.RE2.Anchor  # noqa: SLF001
        except (ImportError, AttributeError):
            return _public(compiled), compiled.search, compiled.match
        return find, anchor.UNANCHORED, anchor.ANCHOR_START

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> Match | None:
        """Return the leftmost match in ``data[start:end]``."""
        stop = len(data) if end is None else min(end, len(data))
        if start > stop:
            return None
        find, anywhere, _ = self._engine
        spans = find(anywhere, data, start, stop)
        return Match(data, spans) if spans[0][0] >= 0 else None

    def match(self, data: bytes, start: int = 0, end: int | None = None) -> Match | None:
        """Return the match in ``data[start:end]`` that begins at ``start``."""
        stop = len(data) if end is None else min(end, len(data))
        if start > stop:
            return None
        find, _, here = self._engine
        spans = find(here, data, start, stop)
        return Match(data, spans) if spans[0][0] >= 0 else None

    def finditer(self, data: bytes, start: int = 0, end: int | None = None) -> Iterator[Match]:
        """Return all matches, left to right, not overlapping."""
        stop = len(data) if end is None else min(end, len(data))
        find, anywhere, _ = self._engine
        position = start
        while position <= stop:
            spans = find(anywhere, data, position, stop)
            first, after = spans[0]
            if first < 0:
                return
            yield Match(data, spans)
            position = after if after > position else position + 1


class Either:
    """Two patterns as one, ``first|second``, for a first that may wait long for its end.

    RE2 reads on after a match of the second until the first, which it prefers at the same start, can no
    longer match. Searched apart, each is read once.
    """

    def __init__(self, first: Rx, second: Rx) -> None:
        """Keep both; where the second matches, the first, if it matches at all, starts no later."""
        self._first = first
        self._second = second

    def finditer(self, data: bytes) -> Iterator[Match]:
        """Return the matches of either, left to right, not overlapping."""
        firsts, seconds = _Next(self._first, data), _Next(self._second, data)
        position = 0
        while True:
            first, second = firsts.at(position), seconds.at(position)
            if first is None or (second is not None and second.start() < first.start()):
                first = second
            if first is None:
                return
            yield first
            position = first.end()


class _Next:
    """The next match of a pattern at or behind an offset that only grows."""

    def __init__(self, pattern: Rx, data: bytes) -> None:
        self._pattern = pattern
        self._data = data
        self._found = pattern.search(data)

    def at(self, position: int) -> Match | None:
        if self._found is not None and self._found.start() < position:
            self._found = self._pattern.search(self._data, position)
        return self._found


class Ahead:
    """Says whether a pattern matches in a stretch, for stretches that all end at the same place.

    The match that was found for one is the answer for the next, as long as it lies ahead.
    """

    def __init__(self, pattern: Rx, data: bytes) -> None:
        """Keep both."""
        self._pattern = pattern
        self._data = data
        self._from, self._found, self._end = 0, -1, -1

    def within(self, start: int, end: int) -> bool:
        """Say whether a match lies in ``data[start:end]``."""
        if end != self._end or not self._from <= start <= self._found:
            found = self._pattern.search(self._data, start, end)
            self._from, self._end = start, end
            self._found = end + 1 if found is None else found.start()
        return self._found <= end


def any_of(*parts: bytes) -> bytes:
    """Return a group that matches any of the parts."""
    return b"(?:" + b"|".join(parts) + b")"


def _public(compiled: Any) -> Callable[[Any, bytes, int, int], Spans]:
    def find(look: Any, data: bytes, start: int, end: int) -> Spans:
        found = look(data, start, end)
        if found is None:
            return ((-1, -1),)
        return tuple(found.span(group) for group in range(compiled.groups + 1))

    return find
