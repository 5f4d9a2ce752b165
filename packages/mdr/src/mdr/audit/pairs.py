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
        self._last_verb = lru_cache(maxsize=512)(self._search_last)
        self._reach = reach

    def find(self, data: bytes) -> Iterator[Pair]:
        """Return the pairs, left to right."""
        for match in self.whole.finditer(data):
            start, target = match.start(), match.start(1)
            if target - start <= SHORT:
                verb, after = self._last_verb(data[start : target + 1], target - start)
            else:
                verb, after = self._search_last(data[start : target + 1], target - start)
            if target - start - after <= self._reach:
                yield Pair(start + verb, target, match.end(1))

    def _search_last(self, stretch: bytes, end: int) -> tuple[int, int]:
        """Return the start and end of the last verb in ``stretch[:end]``; one stands at its start.

        The byte behind ``end`` is there for the pattern's word boundaries.
        """
        verb, after = 0, 0
        for last in self._verb.finditer(stretch, 0, end):
            verb, after = last.start(), last.end()
        return verb, after
