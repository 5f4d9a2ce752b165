"""Bytes by SHA-256: what a blob store promises, and one that keeps them in memory.

Laws (``mdr.store.testing.BlobStoreContract`` asserts them on every implementation):

* ``put`` of bytes that are held changes nothing; content is never rewritten.
* ``get`` returns bytes whose SHA-256 is the one asked for, or raises; it never returns others.
* What ``put`` returned for survives a kill of the process and a loss of power.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mdr.digest import Sha256, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mdr.store.files import Staged


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

    def get_many(self, digests: Sequence[Sha256]) -> dict[Sha256, bytes | None]:
        """Return several blobs, each as :meth:`get` does.

        Raises:
            mdr.errors.IntegrityError: blob-corrupt.
        """
        ...

    def digests(self) -> Iterator[Sha256]:
        """Yield everything held, in no particular order."""
        ...

    def remove(self, digest: Sha256) -> None:
        """Take corrupt bytes away; absent ones are no error. Only repairs call this."""
        ...


class StagingStore(BlobStore, Protocol):
    """A store that several processes of one run fill before anything is published.

    Each process stages and then flushes; when all have, one of them settles content, any may rename
    its share, and one settles names. Only then may an index point to what was staged.
    """

    def offer(self, digest: Sha256, data: bytes) -> Staged | None:
        """Write a blob that has not its name yet; ``None`` when nothing is left to do for it.

        Raises:
            mdr.errors.StoreError: store-unwritable, blobs-unreachable, blobs-refused.
        """
        ...

    def flush(self) -> None:
        """Return when everything this process staged is written."""
        ...

    def settle_content(self, staged: Sequence[Staged]) -> None:
        """Return when the content of staged blobs is durable."""
        ...

    def rename(self, staged: Sequence[Staged]) -> set[str]:
        """Give staged blobs their names; return the folders whose entries changed."""
        ...

    def settle_names(self, folders: set[str]) -> None:
        """Return when the names are durable."""
        ...

    def take_back(self) -> None:
        """Remove what this run staged and never published, where that needs space."""
        ...

    def close(self) -> None:
        """Close connections; they open again when they are needed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobPlace:
    """Where blobs are, as a value that travels to other processes."""

    root: Path
    address: str | None = None
    """``s3://...``; ``None`` means the folder ``root``."""

    def open(self, token: str | None = None) -> StagingStore:
        """Open the store; stores of one ``token`` belong to one run.

        Raises:
            mdr.errors.UsageError: bad-blobs.
        """
        if self.address is not None:
            from mdr.store.s3 import S3BlobStore, s3_address

            return S3BlobStore(s3_address(self.address))
        from mdr.store.files import FileBlobStore

        return FileBlobStore(self.root, token)


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

    def get_many(self, digests: Sequence[Sha256]) -> dict[Sha256, bytes | None]:
        """Return several blobs."""
        return {digest: self.get(digest) for digest in digests}

    def remove(self, digest: Sha256) -> None:
        """Forget bytes."""
        self._blobs.pop(digest, None)

    def digests(self) -> Iterator[Sha256]:
        """Yield everything held."""
        yield from list(self._blobs)
