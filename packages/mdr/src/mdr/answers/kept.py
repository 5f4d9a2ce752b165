"""Answers that were made, kept while the stores' state is the one they were made from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mdr.answers.answer import Ready

MIB: Final = 1 << 20
OVERHEAD: Final = 2_000
"""Bytes that one kept answer takes beside its bodies: headers, key and tables."""
LARGEST_SHARE: Final = 8
"""An answer larger than the eighth part of the room is not kept."""


class Kept:
    """A bounded memory of answers, by request target; the least recently used goes first."""

    def __init__(self, room: int = 64 * MIB) -> None:
        """Take the room in bytes; 0 keeps nothing."""
        self._room = room
        self._used = 0
        self._entries: OrderedDict[bytes, tuple[str, float | None, int, Ready]] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def used(self) -> int:
        """Bytes taken."""
        return self._used

    def get(self, key: bytes, token: str, now: float) -> Ready | None:
        """Return an answer made from the state ``token`` and still fresh at ``now`` (monotonic seconds)."""
        entry = self._entries.get(key)
        if entry is None or entry[0] != token or (entry[1] is not None and entry[1] <= now):
            self.misses += 1
            return None
        self.hits += 1
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
        return entry[3]

    def put(self, key: bytes, token: str, now: float, ready: Ready) -> None:
        """Keep an answer, and forget the least recently used until it fits."""
        seconds = ready.answer.fresh_seconds
        until = None if seconds is None else now + seconds
        size = ready.size + len(key) + OVERHEAD
        with self._lock:
            self._forget(key)
            if size > self._room // LARGEST_SHARE:
                return
            self._entries[key] = (token, until, size, ready)
            self._used += size
            while self._used > self._room:
                self._forget(next(iter(self._entries)))

    def _forget(self, key: bytes) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._used -= old[2]
