"""Freeze a folder: from git's entries to files with size and SHA-256, and what had to stay out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.artifact.discover import (
    FILE_MODES,
    SYMLINK,
    PathLimits,
    collisions,
    link_problem,
    path_problem,
)
from mdr.artifact.types import Skipped
from mdr.version.types import FileEntry, FileMode, in_path_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdr.digest import Sha256
    from mdr.source.types import Oid
    from mdr.version.drafts import DraftFile


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobFact:
    """What is known of one git blob."""

    size: int | None
    """Bytes; ``None`` when the source does not hold it."""
    sha256: Sha256 | None = None
    """``None`` when it was not read."""
    link: bytes | None = None
    """The content, for a symbolic link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLimits:
    """Bounds on one folder."""

    path: PathLimits
    file_bytes: int
    folder_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A folder as it is served."""

    files: tuple[FileEntry, ...]
    omitted: tuple[Skipped, ...]
    """Entries that git has and that are not served."""
    problem: str | None = None
    """Why the folder as a whole is refused."""


def freeze(
    folder: str, entries: Sequence[DraftFile], facts: Mapping[Oid, BlobFact], limits: FolderLimits
) -> Frozen:
    """Turn a snapshot into manifest entries.

    Args:
        folder: The artifact's folder in the repository, ``""`` at the root.
        entries: The snapshot, in any order.
        facts: Sizes, hashes and link texts by object name.
        limits: Bounds.

    Returns:
        Files in path order; everything else of the snapshot with its reason. A problem is set when
        the files together are larger than a folder may be.
    """
    omitted: dict[str, str] = {}
    kept: dict[str, DraftFile] = {}
    for entry in entries:
        problem = path_problem(join(folder, entry.path), limits.path) or _entry_problem(
            entry, facts.get(entry.oid), limits
        )
        if problem is None:
            kept[entry.path] = entry
        else:
            omitted[entry.path] = problem
    for path, first in collisions(kept).items():
        omitted[path] = f"differs only in case or Unicode form from {first}"
        del kept[path]
    omitted |= _refuse_links(kept, facts)
    files = in_path_order(_file(entry, facts[entry.oid]) for entry in kept.values())
    total = sum(file.size for file in files)
    rows = [Skipped(path=join(folder, path), reason=why) for path, why in sorted(omitted.items())]
    too_large = f"the folder has {total:,} bytes, more than {limits.folder_bytes:,}"
    return Frozen(
        files=files,
        omitted=tuple(rows),
        problem=too_large if total > limits.folder_bytes else None,
    )


def join(folder: str, path: str) -> str:
    """Join a folder of the repository and a path inside it."""
    return f"{folder}/{path}" if folder else path


def parse_manifest(text: str) -> tuple[FileEntry, ...]:
    """Read the lines that :func:`mdr.version.types.manifest_sha256` hashes.

    Raises:
        ValueError: A line is not ``sha256 mode size path``.
    """
    files = []
    for line in text.split("\n")[:-1]:
        digest, mode, size, path = line.split(" ", 3)
        files.append(
            FileEntry(path=path, mode=FileMode(mode), size=int(size), sha256=digest)  # type: ignore[arg-type]
        )
    return tuple(files)


def manifest_text(files: Sequence[FileEntry]) -> str:
    """Write the manifest of files that are in path order."""
    return "".join(entry.line() + "\n" for entry in files)


def _entry_problem(entry: DraftFile, fact: BlobFact | None, limits: FolderLimits) -> str | None:
    if entry.mode not in FILE_MODES and entry.mode != SYMLINK:
        return "a submodule or a mode that git does not give to files"
    if fact is None or fact.size is None:
        return "the source does not hold these bytes (larger than the limit, or missing)"
    if fact.size > limits.file_bytes:
        return f"the file has {fact.size:,} bytes, more than {limits.file_bytes:,}"
    if fact.sha256 is None:
        return "the bytes could not be read"
    return None


def _refuse_links(kept: dict[str, DraftFile], facts: Mapping[Oid, BlobFact]) -> dict[str, str]:
    """Take refused links out of ``kept``, again until none leads to a refused one."""
    refused: dict[str, str] = {}
    while True:
        links = [path for path, entry in kept.items() if entry.mode == SYMLINK]
        bad = {
            path: problem
            for path in links
            if (problem := link_problem(path, facts[kept[path].oid].link or b"", kept)) is not None
        }
        if not bad:
            return refused
        refused |= bad
        for path in bad:
            del kept[path]


def _file(entry: DraftFile, fact: BlobFact) -> FileEntry:
    assert fact.sha256 is not None
    assert fact.size is not None
    return FileEntry(path=entry.path, mode=FileMode(entry.mode), size=fact.size, sha256=fact.sha256)
