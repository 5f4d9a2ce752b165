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
"""An answer larger than the eighth part of its room is not kept."""
SMALL: Final = 24 << 10
"""Bytes of the largest body that counts as small."""


class Kept:
    """A bounded memory of answers, by request target; the least recently used goes first.

    Small answers (references, blobs, badges) and large ones (pages) have half of the room each, so that a
    crawler of pages does not push out what programs ask all the time.
    """

    def __init__(self, room: int = 64 * MIB) -> None:
        """Take the room in bytes; 0 keeps nothing."""
        self._small, self._large = _Room(room // 2), _Room(room // 2)
        self.hits = 0
        self.misses = 0

    @property
    def used(self) -> int:
        """Bytes taken."""
        return self._small.used + self._large.used

    def get(self, key: bytes, token: str, now: float) -> Ready | None:
        """Return an answer made from the state ``token`` and still fresh at ``now`` (monotonic seconds)."""
        ready = self._small.get(key, token, now) or self._large.get(key, token, now)
        if ready is None:
            self.misses += 1
        else:
            self.hits += 1
        return ready

    def put(self, key: bytes, token: str, now: float, ready: Ready) -> None:
        """Keep an answer, and forget the least recently used until it fits."""
        small = len(ready.answer.body) <= SMALL
        (self._large if small else self._small).forget(key)
        (self._small if small else self._large).put(key, token, now, ready)

    def grown(self, key: bytes) -> None:
        """Count an answer anew that has been made in one more encoding."""
        self._small.grown(key)
        self._large.grown(key)


class _Room:
    """Answers of one size."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.used = 0
        self._entries: OrderedDict[bytes, tuple[str, float | None, int, Ready]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes, token: str, now: float) -> Ready | None:
        entry = self._entries.get(key)
        if entry is None or entry[0] != token or (entry[1] is not None and entry[1] <= now):
            return None
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
        return entry[3]

    def put(self, key: bytes, token: str, now: float, ready: Ready) -> None:
        seconds = ready.answer.fresh_seconds
        until = None if seconds is None else now + seconds
        size = ready.size + len(key) + OVERHEAD
        with self._lock:
            self._forget(key)
            if size > self._room // LARGEST_SHARE:
                return
            self._entries[key] = (token, until, size, ready)
            self.used += size
            self._trim()

    def grown(self, key: bytes) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            token, until, counted, ready = entry
            size = ready.size + len(key) + OVERHEAD
            self._entries[key] = (token, until, size, ready)
            self.used += size - counted
            self._trim()

    def forget(self, key: bytes) -> None:
        with self._lock:
            self._forget(key)

    def _trim(self) -> None:
        while self.used > self._room:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: bytes) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self.used -= old[2]
