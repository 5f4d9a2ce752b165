"""Two versions side by side: lines, meaning, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdr.digest import sha256
from mdr.errors import BadReference, IntegrityError, SourceError
from mdr.registry.documents import artifact_document, version_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mdr.artifact.types import Artifact
    from mdr.audit.types import SemanticDiff
    from mdr.digest import Sha256
    from mdr.reference.types import Reference
    from mdr.registry.interface import Registry, Resolved, SourceInfo
    from mdr.version.types import FileEntry, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file that is not the same in both versions."""

    path: str
    change: str
    """``added``, ``removed``, ``changed`` or ``mode``."""
    before: FileEntry | None
    after: FileEntry | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON types; ``from`` and ``to`` are the hashes."""
        return {
            "path": self.path,
            "change": self.change,
            "from": None if self.before is None else self.before.sha256,
            "to": None if self.after is None else self.after.sha256,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changes between two versions of one artifact."""

    artifact: Artifact
    source: SourceInfo
    before: Version
    after: Version
    added_lines: int
    removed_lines: int
    unified: str
    """Unified diff of the named file; bytes that are not UTF-8 are shown as ``\\xNN``."""
    semantic: SemanticDiff
    files: tuple[FileChange, ...]

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

    def read(side: Resolved) -> bytes:
        return verified_blob(registry.blob, side.version.sha256, side.artifact.ref)

    return compare_resolved(old, new, read(old), read(new))


def compare_resolved(old: Resolved, new: Resolved, before: bytes, after: bytes) -> Comparison:
    """Compare two resolved versions whose named files' bytes are at hand."""
    from mdr.audit.semantics import semantic_diff, semantics

    grades = (old.version.grade, new.version.grade)
    unified, added, removed = unified_diff(before, after, old.version.label, new.version.label)
    return Comparison(
        artifact=new.artifact,
        source=new.source,
        before=old.version,
        after=new.version,
        added_lines=added,
        removed_lines=removed,
        unified=unified,
        semantic=semantic_diff(semantics(before), semantics(after), grades=grades),
        files=file_changes(old.files, new.files),
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


def unified_diff(before: bytes, after: bytes, old: str, new: str) -> tuple[str, int, int]:
    """Return (unified diff, added lines, removed lines). A carriage return shows as its escape."""
    from difflib import unified_diff as lines_of

    left, right = _lines(before), _lines(after)
    out: list[str] = []
    added = removed = 0
    for number, line in enumerate(lines_of(left, right, old, new)):
        if number > 1:
            added += line.startswith("+")
            removed += line.startswith("-")
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out), added, removed


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "backslashreplace").replace("\r", "\\r")
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [text.rpartition("\n")[2]] if not text.endswith("\n") and text else []
    )
