"""Storages with reference counts: what is alive, and how high it went."""

from __future__ import annotations

from recompute.model.tape import ROUND

Owners = tuple[tuple[str, int], ...]
"""Owner -> bytes, largest first."""


def rounded(size: int) -> int:
    """Round an allocation as the caching allocator does."""
    return -(-size // ROUND) * ROUND


class Arena:
    """Storages with reference counts, the bytes they hold and the highest sum seen."""

    def __init__(self, capture_at: int = -1) -> None:
        self.sizes: dict[str, int] = {}
        self.references: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self.discarded: set[str] = set()
        self.held = 0
        self.peak = 0
        self.peak_moment = 0
        self.moment = 0
        self._capture_at = capture_at
        self.captured: Owners = ()

    def allocate(self, storage: str, size: int, owner: str, references: int = 1) -> None:
        """Add a storage, or only references when it is there already (a view)."""
        if storage in self.references:
            self.references[storage] += references
            return
        self.sizes[storage] = rounded(size)
        self.owners[storage] = owner
        self.references[storage] = references
        self.held += self.sizes[storage]
        self.touch()

    def retain(self, storage: str, references: int = 1) -> None:
        """Add references to a storage that is there."""
        self.references[storage] += references

    def release(self, storage: str) -> None:
        """Drop one reference; the bytes go with the last one."""
        left = self.references[storage] - 1
        assert left >= 0, storage
        self.references[storage] = left
        if left == 0:
            if storage not in self.discarded:
                self.held -= self.sizes[storage]
            self.discarded.discard(storage)
            del self.references[storage], self.sizes[storage], self.owners[storage]

    def discard(self, storage: str) -> None:
        """Free the bytes of a storage that others still refer to."""
        if storage in self.references and storage not in self.discarded:
            self.discarded.add(storage)
            self.held -= self.sizes[storage]

    def restore(self, storage: str) -> None:
        """Give a discarded storage its bytes back."""
        if storage in self.discarded:
            self.discarded.remove(storage)
            self.held += self.sizes[storage]
            self.touch()

    def touch(self, extra: int = 0) -> None:
        """Note a moment, with ``extra`` bytes alive besides the storages."""
        self.moment += 1
        if self.held + extra > self.peak:
            self.peak = self.held + extra
            self.peak_moment = self.moment
        if self.moment == self._capture_at:
            self.captured = self.alive(extra)

    def alive(self, extra: int = 0) -> Owners:
        """Return what is alive, by owner."""
        totals = {"workspace": extra} if extra else {}
        for storage, owner in self.owners.items():
            if storage not in self.discarded:
                totals[owner] = totals.get(owner, 0) + self.sizes[storage]
        return tuple(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    def start_phase(self) -> None:
        """Forget the highest sum."""
        self.peak = 0
        self.touch()
