"""Two versions side by side: lines, meaning, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdr.artifact.license import declared_license
from mdr.digest import sha256
from mdr.errors import BadReference, IntegrityError, SourceError
from mdr.registry.documents import artifact_document, version_document
from mdr.registry.lines import FileChange, counted_lines, unified_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mdr.artifact.types import Artifact
    from mdr.audit.types import SemanticDiff
    from mdr.digest import Sha256
    from mdr.reference.types import Reference
    from mdr.registry.interface import Registry, Resolved, SourceInfo
    from mdr.version.types import FileEntry, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changes between two versions of one artifact."""

    artifact: Artifact
    source: SourceInfo
    before: Version
    after: Version
    added_lines: int
    removed_lines: int
    """Of the named file, as ``added_lines``."""
    unified: str
    """Unified diff of the named file, then of every other file that differs, each with its header."""
    semantic: SemanticDiff
    files: tuple[FileChange, ...]
    programs: str | None
    """What the newer version holds that an agent may run; ``None`` for nothing."""
    license: str | None
    """Of the newer version: what its host says, else what its frontmatter says."""

    @property
    def differs(self) -> bool:
        """Whether a single byte or mode differs."""
        return bool(self.files)

    def to_document(self) -> dict[str, Any]:
        """Return the answer of ``diff``."""
        return {
            "artifact": artifact_document(self.artifact, self.source),
            "from": version_document(self.before),
            "to": version_document(self.after),
            "added_lines": self.added_lines,
            "removed_lines": self.removed_lines,
            "unified": self.unified,
            "semantic": self.semantic.to_document(),
            "files": [change.to_document() for change in self.files],
        }


def compare_references(registry: Registry, before: Reference, after: Reference) -> Comparison:
    """Compare two versions of one artifact.

    Raises:
        mdr.errors.BadReference: not-found and the other codes of ``resolve``.
        mdr.errors.IntegrityError: hash-mismatch.
        mdr.errors.SourceError: bytes-not-found.
    """
    old, new = registry.resolve(before), registry.resolve(after)
    if old.artifact.id != new.artifact.id:
        raise BadReference(
            "not-found", f"{old.artifact.ref} and {new.artifact.ref} are different artifacts"
        )

    def read(digest: Sha256) -> bytes:
        return verified_blob(registry.blob, digest, new.artifact.ref)

    return compare_resolved(old, new, read)


def compare_resolved(
    old: Resolved, new: Resolved, read: Callable[[Sha256], bytes | None]
) -> Comparison:
    """Compare two resolved versions.

    Args:
        old: The older one.
        new: The newer one.
        read: Gives checked bytes; those of both named files must be at hand.
    """
    from mdr.audit.semantics import semantic_diff, semantics
    from mdr.registry.capability import programs

    before, after = read(old.version.sha256), read(new.version.sha256)
    assert before is not None
    assert after is not None
    grades = (old.version.grade, new.version.grade)
    files = file_changes(old.files, new.files)
    labels = (old.version.label, new.version.label)
    named = new.artifact.path.rpartition("/")[2]
    added, removed = counted_lines(before, after)
    return Comparison(
        artifact=new.artifact,
        source=new.source,
        before=old.version,
        after=new.version,
        added_lines=added,
        removed_lines=removed,
        unified="".join(
            unified_lines(change, read, labels)
            for change in sorted(files, key=lambda change: change.path != named)
        ),
        semantic=semantic_diff(semantics(before), semantics(after), grades=grades),
        files=files,
        programs=programs(new.files),
        license=new.source.license or declared_license(after),
    )


def verified_blob(read: Callable[[Sha256], bytes | None], digest: Sha256, ref: str) -> bytes:
    """Read bytes from an untrusted place and check them.

    Raises:
        mdr.errors.SourceError: bytes-not-found.
        mdr.errors.IntegrityError: hash-mismatch.
    """
    data = read(digest)
    if data is None:
        raise SourceError("bytes-not-found", f"{ref}: the registry does not hold sha256:{digest}")
    actual = sha256(data)
    if actual != digest:
        raise IntegrityError(
            "hash-mismatch",
            f"{ref}: the registry's bytes are not sha256:{digest}",
            data={"expected": digest, "actual": actual},
        )
    return data


def file_changes(before: Iterable[FileEntry], after: Iterable[FileEntry]) -> tuple[FileChange, ...]:
    """Name every file that was added, removed or changed, in path order."""
    old = {file.path: file for file in before}
    new = {file.path: file for file in after}
    changes = []
    for path in sorted({*old, *new}, key=str.encode):
        one, two = old.get(path), new.get(path)
        if one == two:
            continue
        if one is None or two is None:
            change = "added" if one is None else "removed"
        else:
            change = "changed" if one.sha256 != two.sha256 else "mode"
        changes.append(FileChange(path=path, change=change, before=one, after=two))
    return tuple(changes)
