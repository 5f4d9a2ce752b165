"""Versions, files and manifests as values (contract.md, documents of mdr, V and F)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from mdr.digest import Sha256, sha256


class FileMode(StrEnum):
    """The three modes that git gives a file and that we keep."""

    REGULAR = "100644"
    EXECUTABLE = "100755"
    SYMLINK = "120000"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a version's folder."""

    path: str
    """Relative to the artifact's folder, ``/`` as separator."""
    mode: FileMode
    size: int
    """Bytes."""
    sha256: Sha256

    def line(self) -> str:
        """``sha256 SP mode SP size SP path``, as the lock and the manifest write it."""
        return f"{self.sha256} {self.mode} {self.size} {self.path}"


def in_path_order(files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
    """Sort by the bytes of the path, so that no locale changes a manifest."""
    return tuple(sorted(files, key=lambda entry: entry.path.encode("utf-8", "surrogateescape")))


def manifest_sha256(files: Iterable[FileEntry]) -> Sha256:
    """Hash the manifest: the lines of ``files`` in path order, each ended by LF."""
    lines = "".join(entry.line() + "\n" for entry in in_path_order(files))
    return sha256(lines.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The bytes of one artifact at one commit of its history."""

    label: str
    """``git:YYYYMMDD.sha7``: UTC date of the committer time, first seven digits of the commit."""
    latest: bool
    committed: str
    """RFC 3339 UTC, ``Z``."""
    commit: str
    """All digits."""
    size: int
    """Bytes of the named file alone."""
    sha256: Sha256
    """Of the named file alone."""
    manifest_sha256: Sha256
    grade: str
    ruleset: str
    same_bytes: tuple[str, ...] = ()
    """Other labels of this artifact whose file has the same bytes."""
    folder_revisions: tuple[FolderRevision, ...] = ()
    yanked: Yanked | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Yanked:
    """Why a version should no longer be chosen; whoever pinned it still gets it."""

    reason: str
    at: str
    """RFC 3339 UTC, ``Z``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Why bytes are no longer served to anyone."""

    sha256: Sha256
    reason: str
    advisory: str | None
    """Identifier or address of a security advisory."""
    at: str
    """RFC 3339 UTC, ``Z``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRevision:
    """A later commit that changed the folder around the file and left the file alone."""

    commit: str
    committed: str
    manifest_sha256: Sha256
    files: tuple[FileEntry, ...] = field(default=(), repr=False)
