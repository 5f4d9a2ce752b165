"""RE2 patterns over bytes, compiled on first use.

Every content pattern of the audit is RE2: matching time is linear in the input whatever the input is.
Counted gaps such as ``{0,80}`` are avoided in patterns, because each count is a state and hostile
input can make RE2's automaton fall back to its slow form; distances are checked on the match instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

Spans = Sequence[tuple[int, int]]
"""(start, end) of the match and of each group; (-1, -1) for a group that took no part."""
Engine = tuple[Callable[[Any, bytes, int, int], Spans], Any, Any]
"""(finds places, argument for a match anywhere, argument for a match at the start)."""


SHORT: Final = 256
"""Bytes up to which the groups of a match are kept; the same phrases come again and again."""


class Match:
    """Where a pattern matched. Groups, which cost RE2 a slower pass, are looked for when asked for."""

    __slots__ = ("_data", "_groups", "_rx", "_span")

    def __init__(self, rx: Rx, data: bytes, span: tuple[int, int]) -> None:
        """Keep the text and the place."""
        self._rx = rx
        self._data = data
        self._span = span
        self._groups: Spans | None = None

    def span(self, group: int = 0) -> tuple[int, int]:
        """Offsets of the first byte and behind the last; both -1 when the group took no part."""
        if group == 0:
            return self._span
        if self._groups is None:
            self._groups = self._rx.groups(self._data, *self._span)
        return self._groups[group]

    def start(self, group: int = 0) -> int:
        """Offset of the first byte; -1 when the group took no part."""
        return self.span(group)[0] if group else self._span[0]

    def end(self, group: int = 0) -> int:
        """Offset behind the last byte; -1 when the group took no part."""
        return self.span(group)[1] if group else self._span[1]

    def group(self, group: int = 0) -> bytes | None:
        """The matched bytes."""
        start, end = self.span(group)
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

    def _compile(self, *, capture: bool) -> Engine:
        import re2

        options = re2.Options()
        encoding = re2.Options.Encoding
        options.encoding = encoding.UTF8 if self._utf8 else encoding.LATIN1
        options.longest_match = self._longest
        options.never_capture = not capture
        options.log_errors = False
        options.max_mem = 64 << 20
        return _engine(re2.compile(self.pattern, options=options))

    @cached_property
    def _places(self) -> Engine:
        return self._compile(capture=False)

    @cached_property
    def _capturing(self) -> Engine:
        return self._compile(capture=True)

    @cached_property
    def _known(self) -> Callable[[bytes, int, int], Spans]:
        return lru_cache(maxsize=256)(self._capture)

    def _capture(self, data: bytes, start: int, end: int) -> Spans:
        find, _, here = self._capturing
        return find(here, data, start, end)

    def groups(self, data: bytes, start: int, end: int) -> Spans:
        """Return the places of the groups of the match that is ``data[start:end]``.

        RE2 prefers that match to all that end before it, so it is found again when reading stops at its
        end; one byte on each side stays for what looks at neighbours.
        """
        if end - start > SHORT:
            return self._capture(data, start, end)
        first = start - 1 if start else 0
        spans = self._known(data[first : end + 1], start - first, end - first)
        return [(low + first, high + first) if low >= 0 else (low, high) for low, high in spans]

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> Match | None:
        """Return the leftmost match in ``data[start:end]``."""
        stop = len(data) if end is None else min(end, len(data))
        if start > stop:
            return None
        find, anywhere, _ = self._places
        spans = find(anywhere, data, start, stop)
        return Match(self, data, spans[0]) if spans[0][0] >= 0 else None

    def match(self, data: bytes, start: int = 0, end: int | None = None) -> Match | None:
        """Return the match in ``data[start:end]`` that begins at ``start``."""
        stop = len(data) if end is None else min(end, len(data))
        if start > stop:
            return None
        find, _, here = self._places
        spans = find(here, data, start, stop)
        return Match(self, data, spans[0]) if spans[0][0] >= 0 else None

    def finditer(self, data: bytes, start: int = 0, end: int | None = None) -> Iterator[Match]:
        """Return all matches, left to right, not overlapping."""
        stop = len(data) if end is None else min(end, len(data))
        find, anywhere, _ = self._places
        position = start
        while position <= stop:
            span = find(anywhere, data, position, stop)[0]
            if span[0] < 0:
                return
            yield Match(self, data, span)
            after = span[1]
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


def _engine(compiled: Any) -> Engine:
    """Return what finds places, and how to tell it where a match may begin.

    RE2's Python module reads its own match objects slowly, so the extension below it is called; where a
    release of the module has no such thing, its public functions do the same.
    """
    try:
        from re2 import _re2

        find, anchor = compiled._regexp.Match, _re2.RE2.Anchor  # noqa: SLF001
    except (ImportError, AttributeError):
        return _public(compiled), compiled.search, compiled.match
    return find, anchor.UNANCHORED, anchor.ANCHOR_START


def _public(compiled: Any) -> Callable[[Any, bytes, int, int], Spans]:
    def find(look: Any, data: bytes, start: int, end: int) -> Spans:
        found = look(data, start, end)
        if found is None:
            return ((-1, -1),)
        return tuple(found.span(group) for group in range(compiled.groups + 1))

    return find
