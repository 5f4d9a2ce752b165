"""What a client needs of a registry. A local data folder and a remote server both offer it.

The client trusts none of it: it recomputes every hash and every grade.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mdr.artifact.types import Artifact
from mdr.digest import Sha256
from mdr.reference.types import Reference
from mdr.version.types import FileEntry, Version

if TYPE_CHECKING:
    from mdr.errors import MdrError
    from mdr.store.search import Page, Query


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """What the host says about a repository; ``None`` where it says nothing."""

    stars: int | None = None
    license: str | None = None
    pushed: str | None = None
    branch: str | None = None
    indexed_commit: str | None = None
    on_disk: bool = False
    """Whether the registry read it from a disk, so that its host may not hold these commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A reference turned into exact bytes."""

    artifact: Artifact
    version: Version
    files: tuple[FileEntry, ...]
    """The folder of the version (one file for kinds other than skill), path order."""
    source: SourceInfo
    notes: tuple[str, ...] = ()
    """Things to tell the person, such as several labels with the same bytes."""


class Registry(Protocol):
    """Read side of a registry."""

    def resolve(self, reference: Reference) -> Resolved:
        """Return the exact version a reference means.

        Raises:
            mdr.errors.BadReference: not-found, ambiguous-reference, digest-too-short.
        """
        ...

    def versions(self, reference: Reference) -> tuple[Artifact, tuple[Version, ...]]:
        """Return an artifact and all its versions, newest first."""
        ...

    def files(self, reference: Reference) -> tuple[FileEntry, ...]:
        """Return the files of the version that a reference means."""
        ...

    def blob(self, digest: Sha256) -> bytes | None:
        """Return the bytes of a hash, or ``None`` when this registry does not hold them."""
        ...

    def each_blob(self, digests: Sequence[Sha256]) -> Iterator[bytes | MdrError | None]:
        """Yield the bytes of each hash in the order asked, ``None`` or what :meth:`blob` raises otherwise."""
        ...

    def find_by_content(self, digests: Sequence[Sha256]) -> dict[Sha256, tuple[Resolved, ...]]:
        """Return, for each hash of a named file, the versions that have exactly these bytes.

        All are asked about together: to ask about one after the other costs as many times more.
        """
        ...

    def search(self, query: Query) -> Page:
        """Find artifacts by words and facets.

        Raises:
            mdr.errors.UsageError: bad-cursor.
        """
        ...
