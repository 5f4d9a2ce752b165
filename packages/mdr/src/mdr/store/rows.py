"""What the index is told and what it answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.artifact.types import Artifact, Skipped
    from mdr.digest import Sha256
    from mdr.source.types import Oid
    from mdr.version.types import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One repository."""

    id: int
    host: str
    repository: str
    location: str
    """Address it was last indexed from."""
    head: Oid | None
    branch: str | None
    stars: int | None
    license: str | None
    pushed: str | None
    etag: str | None
    retry_after: int | None
    """Unix time before which the host's API must not be asked again."""
    commits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWords:
    """What the host says about a repository, with what a conditional request needs."""

    stars: int | None = None
    license: str | None = None
    pushed: str | None = None
    etag: str | None = None
    retry_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRevision:
    """A folder revision to record."""

    commit: Oid
    committed: str
    manifest_sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A version to record; its label is chosen when it is written, beside those that exist."""

    commit: Oid
    time: int
    committed: str
    size: int
    sha256: Sha256
    manifest_sha256: Sha256
    omitted: tuple[Skipped, ...]
    revisions: tuple[NewRevision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewArtifact:
    """An artifact with every version on the line, oldest first."""

    artifact: Artifact
    versions: tuple[NewVersion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One verdict of the audit."""

    sha256: Sha256
    kind: str
    ruleset: str
    grade: str
    penalty: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLine:
    """Everything that one indexing of one source writes, in one transaction."""

    head: Oid
    branch: str | None
    location: str
    commits: int
    base: Oid | None = None
    """The head that was held when the run began."""
    artifacts: tuple[NewArtifact, ...]
    manifests: dict[Sha256, str]
    objects: dict[Oid, tuple[Sha256, int]]
    grades: tuple[Grade, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a transaction changed."""

    new_versions: int
    refreshed: tuple[Artifact, ...]
    """Artifacts whose latest version, description or presence is another than before."""
    latest: Mapping[str, Offered]
    """What readers are offered, by artifact id."""
    changed: bool
    """Whether readers see anything else than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The version that ``latest`` means."""

    sha256: Sha256
    withdrawn: bool
    """Whether a tombstone lies on its bytes, because it lies on those of every version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How much of one source the index holds."""

    artifacts: int
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """A manifest and its files."""

    sha256: Sha256
    files: tuple[FileEntry, ...]
