"""A verb and its object in one sentence, found in linear time.

The pattern itself has no counted gap; the distance from the last verb before the object is checked on
the match. So hostile repetition of verbs costs one pass, not one pass for each verb.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from mdr.audit.rx import Rx

if TYPE_CHECKING:
    from collections.abc import Iterator


SHORT: Final = 200
"""Bytes up to which the answer for a stretch of text is kept; the same phrases come again and again."""


class Pair(NamedTuple):
    """Where a verb and its object stand."""

    verb: int
    """Start of the last verb before the object."""
    object: int
    end: int


class Pairs:
    """Finds an object that a verb precedes within a distance, with nothing forbidden between."""

    def __init__(self, verb: bytes, target: bytes, *, gap: bytes = rb"[^.\n]", reach: int) -> None:
        """Build both patterns.

        Args:
            verb: Pattern of the verb, without groups that capture.
            target: Pattern of the object, without groups that capture.
            gap: One byte of what may stand between them.
            reach: Most bytes between the end of the verb and the object.
        """
        self.whole = Rx(rb"(?:" + verb + rb")" + gap + rb"*?(" + target + rb")")
        self._verb = Rx(verb)
        self._reach = reach
        self._known = lru_cache(maxsize=512)(self._parts)

    def find(self, data: bytes) -> Iterator[Pair]:
        """Return the pairs, left to right."""
        for match in self.whole.finditer(data):
            start, end = match.start(), match.end()
            verb, after, target = self._within(data, start, end)
            if target - after <= self._reach:
                yield Pair(verb, target, end)

    def _within(self, data: bytes, start: int, end: int) -> tuple[int, int, int]:
        """Return where the last verb of a match starts and ends, and where the object starts."""
        if end - start <= SHORT:
            first = max(0, start - 1)
            known = self._known(data[first : end + 1], start - first, end - first)
            if known is not None:
                return first + known[0], first + known[1], first + known[2]
        parts = self._parts(data, start, end)
        assert parts is not None, "the pattern with groups matches what the one without does"
        return parts

    def _parts(self, data: bytes, start: int, end: int) -> tuple[int, int, int] | None:
        whole = self.whole.match(data, start)
        if whole is None or whole.end() != end:
            return None
        verb, after, target = start, start, whole.start(1)
        for last in self._verb.finditer(data, start, target):
            verb, after = last.start(), last.end()
        return verb, after, target
