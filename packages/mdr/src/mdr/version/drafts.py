"""Versions before their bytes are known: git's names of objects stand where hashes will be."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdr.artifact.types import Artifact, Skipped
    from mdr.source.types import Commit, Oid


@dataclass(frozen=True, slots=True)
class DraftFile:
    """One entry of a folder. Positional and shared between snapshots: a folder has many of both."""

    path: str
    """Relative to the artifact's folder."""
    mode: str
    oid: Oid


Snapshot = tuple[DraftFile, ...]
"""A folder at one commit, in no particular order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRevision:
    """A later commit that changed the folder around the file and left the file alone."""

    commit: Commit
    files: Snapshot


@dataclass(slots=True, kw_only=True)
class DraftVersion:
    """The file at one commit. Mutable while history is replayed: revisions are appended."""

    commit: Commit
    oid: Oid
    files: Snapshot
    revisions: deque[DraftRevision] = field(default_factory=deque)
    dropped_revisions: int = 0


@dataclass(slots=True, kw_only=True)
class DraftArtifact:
    """One path and its versions, oldest first. Mutable while history is replayed."""

    artifact: Artifact
    versions: list[DraftVersion] = field(default_factory=list)
    present: bool = False
    """Whether the file exists at the last commit replayed."""
    previously: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one first-parent line holds."""

    artifacts: tuple[DraftArtifact, ...]
    skipped: tuple[Skipped, ...]
    commits: int
