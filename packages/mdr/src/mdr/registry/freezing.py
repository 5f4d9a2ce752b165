"""From a replayed line and what its blobs turned out to be, to what the index records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mdr.artifact.discover import FILE_MODES, SYMLINK, PathLimits
from mdr.artifact.types import Kind, Skipped
from mdr.store.rows import Grade, NewArtifact, NewRevision, NewVersion
from mdr.version.labels import committed_at
from mdr.version.manifest import BlobFact, FolderLimits, Frozen, freeze, join, manifest_text
from mdr.version.types import manifest_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.digest import Sha256
    from mdr.registry.telling import Told
    from mdr.settings import Limits
    from mdr.source.types import Commit, Oid
    from mdr.version.drafts import DraftArtifact, DraftVersion, Line, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The git objects that a line needs."""

    oids: tuple[Oid, ...]
    kinds: Mapping[Oid, frozenset[Kind]]
    """Objects that are an artifact's own file, with the kinds under which to audit them."""
    latest: frozenset[Oid]
    """Objects that are the newest version of an artifact."""
    links: tuple[Oid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is known of them."""

    hashes: Mapping[Oid, tuple[Sha256, int]]
    sizes: Mapping[Oid, int | None]
    """Of the objects that were not known before."""
    links: Mapping[Oid, bytes]
    fresh: dict[Oid, tuple[Sha256, int]]
    grades: tuple[Grade, ...]
    told: Mapping[Oid, Told]
    """What files that were read tell about themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenLine:
    """What the index records."""

    artifacts: tuple[NewArtifact, ...]
    manifests: dict[Sha256, str]
    skipped: tuple[Skipped, ...]
    oids: Mapping[str, Oid]
    """Git's name of each artifact's latest file, by artifact id."""


def wanted_objects(line: Line) -> Wanted:
    """List the blobs of a line, each once, in the order in which history brings them."""
    oids: dict[Oid, None] = {}
    links: dict[Oid, None] = {}
    kinds: dict[Oid, frozenset[Kind]] = {}
    seen: set[int] = set()
    for draft in line.artifacts:
        for version in draft.versions:
            kinds[version.oid] = kinds.get(version.oid, frozenset()) | {draft.artifact.kind}
            for files in (version.files, *(each.files for each in version.revisions)):
                for file in files:
                    if id(file) in seen:
                        continue
                    seen.add(id(file))
                    if file.mode in FILE_MODES or file.mode == SYMLINK:
                        oids[file.oid] = None
                    if file.mode == SYMLINK:
                        links[file.oid] = None
    latest = frozenset(draft.versions[-1].oid for draft in line.artifacts)
    return Wanted(oids=tuple(oids), kinds=kinds, latest=latest, links=tuple(links))


def freeze_line(line: Line, content: Content, limits: Limits) -> FrozenLine:
    """Freeze every version and folder revision of a line.

    Args:
        line: From the replay.
        content: Hashes, sizes and link texts.
        limits: Bounds on files and folders.
    """
    freezer = _Freezer(content, limits)
    artifacts = []
    oids: dict[str, Oid] = {}
    for draft in line.artifacts:
        new = freezer.artifact(draft)
        if new is not None:
            artifacts.append(new)
            oids[new.artifact.id] = freezer.latest
    reasons = {each.path: each.reason for each in line.skipped} | freezer.skipped
    skipped = {_printable(path): reason for path, reason in sorted(reasons.items())}
    return FrozenLine(
        artifacts=tuple(artifacts),
        manifests=freezer.manifests,
        skipped=tuple(Skipped(path=path, reason=reason) for path, reason in skipped.items()),
        oids=oids,
    )


class _Freezer:
    """Freezes one artifact after the other and collects what they share."""

    def __init__(self, content: Content, limits: Limits) -> None:
        self.manifests: dict[Sha256, str] = {}
        self.skipped: dict[str, str] = {}
        self.latest: Oid = ""
        self._limits = FolderLimits(
            path=PathLimits(max_bytes=limits.max_path_bytes, max_depth=limits.max_depth),
            file_bytes=limits.max_file_bytes,
            folder_bytes=limits.max_folder_bytes,
        )
        self._facts = {
            oid: BlobFact(size=size, sha256=digest, link=content.links.get(oid))
            for oid, (digest, size) in content.hashes.items()
        }
        for oid, size in content.sizes.items():
            self._facts.setdefault(oid, BlobFact(size=size))

    def artifact(self, draft: DraftArtifact) -> NewArtifact | None:
        """Freeze all versions; ``None`` when none of them can be served."""
        versions = []
        for each in draft.versions:
            version = self._version(draft, each)
            if version is not None:
                versions.append(version)
                self.latest = each.oid
        if not versions:
            return None
        present = draft.present and versions[-1].commit == draft.versions[-1].commit.oid
        artifact = replace(draft.artifact, present=present, previously=draft.previously)
        return NewArtifact(artifact=artifact, versions=tuple(versions))

    def _version(self, draft: DraftArtifact, version: DraftVersion) -> NewVersion | None:
        path = draft.artifact.path
        fact = self._facts.get(version.oid)
        frozen = self._freeze(draft, version.files)
        own = next((f for f in frozen.files if join(draft.artifact.folder, f.path) == path), None)
        problem = frozen.problem
        if own is None or fact is None or fact.sha256 is None:
            reasons = [each.reason for each in frozen.omitted if each.path == path]
            problem = reasons[0] if reasons else "the file itself cannot be served"
        if problem is not None or own is None:
            self.skipped[path] = f"{problem} (commit {version.commit.oid[:7]})"
            return None
        return NewVersion(
            commit=version.commit.oid,
            time=version.commit.time,
            committed=_date(version.commit),
            size=own.size,
            sha256=own.sha256,
            manifest_sha256=self._keep(frozen),
            omitted=tuple(
                Skipped(path=_printable(e.path), reason=e.reason) for e in frozen.omitted
            ),
            revisions=self._revisions(draft, version),
        )

    def _revisions(self, draft: DraftArtifact, version: DraftVersion) -> tuple[NewRevision, ...]:
        revisions = []
        for each in version.revisions:
            frozen = self._freeze(draft, each.files)
            if frozen.problem is not None:
                self.skipped[draft.artifact.path] = (
                    f"{frozen.problem} (folder at commit {each.commit.oid[:7]})"
                )
                continue
            revisions.append(
                NewRevision(
                    commit=each.commit.oid,
                    committed=_date(each.commit),
                    manifest_sha256=self._keep(frozen),
                )
            )
        return tuple(revisions)

    def _freeze(self, draft: DraftArtifact, files: Snapshot) -> Frozen:
        frozen = freeze(draft.artifact.folder, files, self._facts, self._limits)
        for each in frozen.omitted:
            self.skipped.setdefault(each.path, each.reason)
        return frozen

    def _keep(self, frozen: Frozen) -> Sha256:
        digest = manifest_sha256(frozen.files)
        self.manifests.setdefault(digest, manifest_text(frozen.files))
        return digest


def _date(commit: Commit) -> str:
    text = committed_at(commit.time)
    assert text is not None  # the replay leaves out commits without a date
    return text


def _printable(path: str) -> str:
    """Write a path of any bytes as harmless text."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
