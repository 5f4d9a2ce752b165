"""A verb and its object in one sentence, found in linear time.

The pattern itself has no counted gap; the distance from the last verb before the object is checked on
the match. So hostile repetition of verbs costs one pass, not one pass for each verb.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.audit.rx import Rx

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Pair:
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

    def find(self, data: bytes) -> Iterator[Pair]:
        """Return the pairs, left to right."""
        for match in self.whole.finditer(data):
            target = match.start(1)
            verb, after = match.start(), match.start()
            for last in self._verb.finditer(data, match.start(), target):
                verb, after = last.start(), last.end()
            if target - after <= self._reach:
                yield Pair(verb, target, match.end(1))
