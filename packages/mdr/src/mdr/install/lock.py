"""``mdr.lock``: the values it holds and the exact bytes it is written as (docs/reference/mdr-lock.md).

The file is deterministic: entries sorted by host, then ref, keys in a fixed order, one line per file
hash, no timestamps, so that two people who lock the same versions get the same bytes and git merges
most changes line by line. Reading is in :mod:`mdr.install.lock_read`.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mdr.errors import LockError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mdr.artifact.types import Kind
    from mdr.digest import Sha256
    from mdr.version.types import FileEntry

LOCK_NAME: Final = "mdr.lock"
LOCK_VERSION: Final = 1

ENTRY_KEYS: Final = (
    "ref",
    "host",
    "repository",
    "path",
    "kind",
    "pin",
    "label",
    "commit",
    "sha256",
    "size",
    "manifest_sha256",
    "ruleset",
    "grade",
    "targets",
    "files",
)
"""The keys of one ``[[artifact]]``, in the order in which they are written."""


class Pin(StrEnum):
    """Whether ``update`` may move an entry."""

    LABEL = "label"
    """A label is followed: ``update`` moves it to the newest version."""
    SHA256 = "sha256"
    """A SHA-256 never moves."""


class Scope(StrEnum):
    """Below which root an agent's folder lies."""

    PROJECT = "project"
    """The folder that holds ``mdr.lock``."""
    USER = "user"
    """The home folder."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Target:
    """Where an artifact is installed: a scope and an agent's name, never a machine's path."""

    scope: Scope
    agent: str

    def __str__(self) -> str:
        return f"{self.scope}:{self.agent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One ``[[artifact]]`` of the lock."""

    ref: str
    """``owner/repo/name``, or ``owner/repo:path`` where the name is ambiguous; display spelling."""
    host: str
    repository: str
    path: str
    kind: Kind
    pin: Pin
    label: str
    commit: str
    """All digits."""
    sha256: Sha256
    """Of the named file alone."""
    size: int
    """Bytes of the named file alone."""
    manifest_sha256: Sha256
    ruleset: str
    grade: str
    targets: tuple[Target, ...]
    files: tuple[FileEntry, ...]
    """Path order."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Host, lower-case repository and path: what makes two entries the same artifact."""
        return self.host, self.repository.lower(), self.path

    @property
    def file_name(self) -> str:
        """The named file's own name, such as ``SKILL.md``."""
        return self.path.rpartition("/")[2]

    @property
    def name(self) -> str:
        """The display name: what the ref says, or what the path says where the ref holds a path."""
        prefix = ("" if self.host == "github.com" else f"{self.host}/") + self.repository
        if self.ref[len(prefix) : len(prefix) + 1] == "/":
            return self.ref[len(prefix) + 1 :]
        return display_name(self.repository, self.path, is_skill=self.kind.value == "skill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The whole lock, entries sorted."""

    entries: tuple[Entry, ...] = ()

    def find(self, ref: str) -> tuple[Entry, ...]:
        """Return the entries whose ref is ``ref``; case is ignored in host, owner and repository."""
        return tuple(entry for entry in self.entries if entry.ref.lower() == ref.lower())

    def put(self, entry: Entry) -> Lock:
        """Return a lock with ``entry`` in place of the one of the same identity."""
        others = (held for held in self.entries if held.identity != entry.identity)
        return Lock(entries=in_lock_order((*others, entry)))

    def without(self, entry: Entry) -> Lock:
        """Return a lock that lacks ``entry``."""
        return replace(self, entries=tuple(h for h in self.entries if h.identity != entry.identity))


def display_name(repository: str, path: str, *, is_skill: bool) -> str:
    """Return what an artifact is called where its ref does not say.

    Args:
        repository: ``owner/repo``; names a skill at the repository's root.
        path: Path of the named file in the repository.
        is_skill: Whether the folder, not the file, carries the name.
    """
    folder, _, file_name = path.rpartition("/")
    if is_skill:
        return folder.rpartition("/")[2] or repository.rpartition("/")[2]
    return file_name.partition(".")[0] or file_name


def in_lock_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Sort by host, ref and path, by bytes."""
    return tuple(sorted(entries, key=lambda e: (e.host.encode(), e.ref.encode(), e.path.encode())))


def entry_values(entry: Entry) -> dict[str, str | int | list[str]]:
    """Return the fields of an entry as JSON and TOML types, in the order of the lock."""
    return {
        "ref": entry.ref,
        "host": entry.host,
        "repository": entry.repository,
        "path": entry.path,
        "kind": entry.kind.value,
        "pin": entry.pin.value,
        "label": entry.label,
        "commit": entry.commit,
        "sha256": entry.sha256,
        "size": entry.size,
        "manifest_sha256": entry.manifest_sha256,
        "ruleset": entry.ruleset,
        "grade": entry.grade,
        "targets": [str(target) for target in entry.targets],
        "files": [file.line() for file in entry.files],
    }


def format_lock(lock: Lock) -> bytes:
    """Write a lock as its exact bytes: UTF-8, LF, sorted, nothing that changes from run to run."""
    lines = [f"version = {LOCK_VERSION}"]
    for entry in in_lock_order(lock.entries):
        lines.append("[[artifact]]")
        for key, value in entry_values(entry).items():
            lines += _assignment(key, value)
    return ("\n".join(lines) + "\n").encode()


def write_lock(path: Path, lock: Lock) -> None:
    """Replace the lock file in one step: temporary sibling, fsync, rename.

    A lock whose bytes would not change is not touched. A lock file that is a symlink is refused, since
    the rename would replace the link and leave the file it names behind.

    Raises:
        mdr.errors.LockError: lock-is-link.
        mdr.errors.StoreError: lock-not-written.
    """
    data = format_lock(lock)
    if path.is_symlink():
        raise LockError(
            "lock-is-link",
            f"{path.name} is a symbolic link",
            hint="replace the link by the file itself; mdr writes the lock by renaming",
        )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if path.is_file() and path.read_bytes() == data:
            return
        _write_durably(temporary, data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError("lock-not-written", f"cannot write {path}: {error.strerror}") from error


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
    )
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _assignment(key: str, value: str | int | list[str]) -> list[str]:
    match value:
        case int():
            return [f"{key} = {value}"]
        case str():
            return [f"{key} = {_toml_string(value)}"]
        case _ if key == "files":
            return [f"{key} = [", *(f"  {_toml_string(line)}," for line in value), "]"]
        case _:
            return [f"{key} = [{', '.join(_toml_string(item) for item in value)}]"]


def _toml_string(text: str) -> str:
    """Quote a TOML basic string (TOML 1.0, section String): escape quotes, backslash, controls."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(_escaped(char) for char in quoted) + '"'


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x20 or 0x7F <= code < 0xA0 else char
