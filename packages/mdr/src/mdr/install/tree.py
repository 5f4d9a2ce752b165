"""What lies at a destination now, and how it differs from what should: by hash, never by date."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mdr.digest import Sha256, sha256
from mdr.version.types import FileEntry, FileMode, manifest_sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_HASHED_BYTES: Final = 64 << 20
"""A larger file cannot be ours (Limits.max_file_bytes is below it); it is named, not read."""
MAX_ENTRIES: Final = 50_000
"""More than this in one folder cannot be ours either; reading stops there."""
HAS_MODES: Final = os.name == "posix"
"""Windows keeps no executable bit, so it is neither written nor compared there."""


class Shape(StrEnum):
    """What stands at a destination."""

    ABSENT = "absent"
    FOLDER = "folder"
    FILE = "file"
    OTHER = "other"
    """A symbolic link, a device, a socket: never ours, never followed."""


class Problem(StrEnum):
    """How one file differs."""

    CHANGED = "changed"
    MISSING = "missing"
    EXTRA = "extra"
    MODE = "mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One file that is not as it should be."""

    path: str
    """Relative to the artifact's folder."""
    problem: Problem
    expected: str | None
    actual: str | None
    crlf: bool = False
    """Whether the bytes would be right had no program turned LF into CRLF."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found at a destination."""

    shape: Shape
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    """Links, devices, unreadable and oversized files, and empty folders (with a final ``/``)."""
    crlf: Mapping[str, Sha256] = field(default_factory=dict)
    """For files with CRLF, the hash they would have with LF."""

    @property
    def neutral(self) -> Sha256 | None:
        """The manifest hash with modes left out, or ``None`` when something odd is there."""
        return None if self.odd else neutral_manifest(self.files.values())


def neutral_manifest(files: Iterable[FileEntry]) -> Sha256:
    """Hash a manifest with every mode regular, so that systems without modes agree."""
    return manifest_sha256(
        FileEntry(path=f.path, mode=FileMode.REGULAR, size=f.size, sha256=f.sha256) for f in files
    )


def read_place(path: Path, *, file_name: str | None) -> Found:
    """Read a destination without following any link.

    Args:
        path: The folder of a skill, or the one file of another kind.
        file_name: The file's name in the manifest when the destination is one file, else ``None``.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Found(shape=Shape.ABSENT)
    if stat.S_ISDIR(status.st_mode):
        reader = _Reader()
        reader.folder(str(path), "")
        return reader.found(Shape.FOLDER)
    if stat.S_ISREG(status.st_mode):
        reader = _Reader()
        reader.file(str(path), file_name or path.name, status)
        return reader.found(Shape.FILE)
    return Found(shape=Shape.OTHER, odd=(file_name or "",))


def compare(expected: Iterable[FileEntry], found: Found) -> tuple[Difference, ...]:
    """Name every changed, missing and extra file and every wrong mode, in path order."""
    wanted = {file.path: file for file in expected}
    differences = [d for file in wanted.values() for d in _one(file, found)]
    for path, file in found.files.items():
        if path not in wanted:
            differences.append(_extra(path, file.sha256))
    differences += [_extra(path, None) for path in found.odd if path not in wanted]
    return tuple(sorted(differences, key=lambda d: (d.path.encode("utf-8", "replace"), d.problem)))


def _one(file: FileEntry, found: Found) -> list[Difference]:
    actual = found.files.get(file.path)
    if actual is None:
        problem = Problem.CHANGED if file.path in found.odd else Problem.MISSING
        shown = "not a regular file" if problem is Problem.CHANGED else None
        return [Difference(path=file.path, problem=problem, expected=file.sha256, actual=shown)]
    if actual.sha256 != file.sha256:
        return [
            Difference(
                path=file.path,
                problem=Problem.CHANGED,
                expected=file.sha256,
                actual=actual.sha256,
                crlf=found.crlf.get(file.path) == file.sha256,
            )
        ]
    if HAS_MODES and actual.mode is not file.mode:
        return [
            Difference(path=file.path, problem=Problem.MODE, expected=file.mode, actual=actual.mode)
        ]
    return []


def _extra(path: str, digest: Sha256 | None) -> Difference:
    return Difference(path=path, problem=Problem.EXTRA, expected=None, actual=digest)


class _Reader:
    """Collects one folder; plain os calls, since the no-op install spends its time here."""

    def __init__(self) -> None:
        self._files: dict[str, FileEntry] = {}
        self._odd: list[str] = []
        self._crlf: dict[str, Sha256] = {}
        self._seen = 0

    def found(self, shape: Shape) -> Found:
        return Found(shape=shape, files=self._files, odd=tuple(self._odd), crlf=self._crlf)

    def folder(self, path: str, prefix: str) -> None:
        try:
            with os.scandir(path) as listing:
                items = list(listing)
        except OSError:
            self._odd.append(prefix)
            return
        if prefix and not items:
            self._odd.append(prefix)
        for item in items:
            self._seen += 1
            if self._seen > MAX_ENTRIES:
                self._odd.append(f"{prefix}...")
                return
            name = prefix + item.name
            if item.is_dir(follow_symlinks=False):
                self.folder(item.path, f"{name}/")
            elif item.is_file(follow_symlinks=False):
                self.file(item.path, name, item.stat(follow_symlinks=False))
            else:
                self._odd.append(name)

    def file(self, path: str, name: str, status: os.stat_result) -> None:
        if status.st_size > MAX_HASHED_BYTES:
            self._odd.append(name)
            return
        try:
            with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - on the fast path
                data = stream.read()
        except OSError:
            self._odd.append(name)
            return
        executable = HAS_MODES and status.st_mode & stat.S_IXUSR
        mode = FileMode.EXECUTABLE if executable else FileMode.REGULAR
        self._files[name] = FileEntry(path=name, mode=mode, size=len(data), sha256=sha256(data))
        if b"\r\n" in data:
            self._crlf[name] = sha256(data.replace(b"\r\n", b"\n"))
