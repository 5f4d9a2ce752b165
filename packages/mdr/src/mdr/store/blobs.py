"""Bytes by SHA-256: what a blob store promises, and one that keeps them in memory.

Laws (``mdr.store.testing.BlobStoreContract`` asserts them on every implementation):

* ``put`` of bytes that are held changes nothing; content is never rewritten.
* ``get`` returns bytes whose SHA-256 is the one asked for, or raises; it never returns others.
* What ``put`` returned for survives a kill of the process and a loss of power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mdr.digest import Sha256, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class BlobStore(Protocol):
    """Bytes by SHA-256."""

    def put(self, blobs: Iterable[bytes]) -> list[Sha256]:
        """Keep ``blobs`` durably and return their hashes in order.

        Raises:
            mdr.errors.StoreError: store-unwritable, store-readback.
        """
        ...

    def get(self, digest: Sha256) -> bytes | None:
        """Return the bytes of ``digest``, ``None`` when they are not held.

        Raises:
            mdr.errors.IntegrityError: blob-corrupt, when what is held has another hash.
        """
        ...

    def has(self, digest: Sha256) -> bool:
        """Say whether ``digest`` is held, without reading it."""
        ...

    def digests(self) -> Iterator[Sha256]:
        """Yield everything held, in no particular order."""
        ...


class MemoryBlobStore:
    """Implements :class:`BlobStore` in memory."""

    def __init__(self) -> None:
        self._blobs: dict[Sha256, bytes] = {}

    def put(self, blobs: Iterable[bytes]) -> list[Sha256]:
        """Keep the blobs until the process ends."""
        names = []
        for data in blobs:
            digest = sha256(data)
            self._blobs.setdefault(digest, data)
            names.append(digest)
        return names

    def get(self, digest: Sha256) -> bytes | None:
        """Return the bytes, ``None`` when they are not held."""
        return self._blobs.get(digest)

    def has(self, digest: Sha256) -> bool:
        """Say whether the bytes are held."""
        return digest in self._blobs

    def digests(self) -> Iterator[Sha256]:
        """Yield everything held."""
        yield from list(self._blobs)
