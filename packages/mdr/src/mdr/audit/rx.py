"""RE2 patterns over bytes, compiled on first use.

Every content pattern of the audit is RE2: matching time is linear in the input whatever the input is.
Counted gaps such as ``{0,80}`` are avoided in patterns, because each count is a state and hostile
input can make RE2's automaton fall back to its slow form; distances are checked on the match instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol


class Match(Protocol):
    """What the audit needs of a match."""

    def start(self, group: int | str = 0) -> int:
        """Offset of the first byte; -1 when the group took no part."""
        ...

    def end(self, group: int | str = 0) -> int:
        """Offset behind the last byte."""
        ...

    def group(self, group: int | str = 0) -> bytes | None:
        """The matched bytes."""
        ...


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

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> Match | None:
        """Return the leftmost match in ``data[start:end]``."""
        found: Match | None = self._compiled.search(data, start, end)
        return found

    def match(self, data: bytes, start: int = 0) -> Match | None:
        """Return the match that begins at ``start``."""
        found: Match | None = self._compiled.match(data, start)
        return found

    def finditer(self, data: bytes, start: int = 0, end: int | None = None) -> Iterator[Match]:
        """Return all matches, left to right, not overlapping."""
        found: Iterator[Match] = self._compiled.finditer(data, start, end)
        return found


def any_of(*parts: bytes) -> bytes:
    """Return a group that matches any of the parts."""
    return b"(?:" + b"|".join(parts) + b")"
