"""A backup on a disk: a folder that grows with every backup, or one tar file.

::

    DIR/blobs/ab/cd/...                     bytes by SHA-256, shared by all snapshots
    DIR/snapshots/000001-20260817T101500Z/  manifest.json, blobs.gz, one TABLE.jsonl.gz each
    FILE.tar                                the same names, one snapshot, its manifest last

A snapshot gets its name when everything in it, and every blob it names, is on the disk. What a run that
died left is named ``.part`` and nobody reads it.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mdr.digest import Sha256, sha256
from mdr.errors import StoreError, UsageError
from mdr.store.durable import barrier
from mdr.store.files import FileBlobStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMAT: Final = "mdr-backup/1"
MANIFEST: Final = "manifest.json"
MAX_MANIFEST: Final = 1 << 20


class Sink(Protocol):
    """Where a backup goes."""

    def lacks(self, digests: Sequence[Sha256]) -> list[Sha256]:
        """Return the blobs that are not there yet."""
        ...

    def keep(self, blobs: Sequence[bytes]) -> None:
        """Keep blobs durably."""
        ...

    def seal(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Keep the files of ``folder`` and the manifest, durably and all at once."""
        ...


class Archive(Protocol):
    """Where a backup is read from."""

    name: str
    """Of the snapshot."""
    manifest: dict[str, Any]

    def file(self, name: str) -> bytes:
        """Return a file of the snapshot, as its manifest says it is.

        Raises:
            mdr.errors.StoreError: backup-damaged.
        """
        ...

    def blob(self, digest: Sha256) -> bytes | None:
        """Return verified bytes, ``None`` when they are not there.

        Raises:
            mdr.errors.IntegrityError: blob-corrupt.
        """
        ...


@contextmanager
def sink(target: Path, name: str) -> Iterator[Sink]:
    """Open a folder or a new ``.tar`` file for one backup.

    Args:
        target: A folder, which may hold earlier backups, or a file that ends in ``.tar``.
        name: The time of the snapshot.

    Raises:
        mdr.errors.UsageError: backup-exists.
        mdr.errors.StoreError: store-unwritable.
    """
    try:
        if target.suffix == ".tar":
            if target.exists():
                raise UsageError(
                    "backup-exists", f"{target} is there already", hint="choose another name"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            with _tar_sink(target, name) as tar:
                yield tar
        else:
            from mdr.store.locking import hold

            (target / "snapshots").mkdir(parents=True, exist_ok=True)
            with hold(target / "lock"):
                yield _FolderSink(target, name)
    except OSError as error:
        raise StoreError(
            "store-unwritable",
            f"the backup {target} cannot be written: {error.strerror or error}",
            hint="check free space and permissions",
        ) from error


class _FolderSink:
    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._blobs = FileBlobStore(root)
        numbers = [int(each.name[:6]) for each in snapshots_of(root)]
        self._name = f"{max(numbers, default=0) + 1:06}-{name}"
        for left in (root / "snapshots").glob("*.part"):
            shutil.rmtree(left, ignore_errors=True)
        for leftover in self._blobs.leftovers():  # the lock says that its run is dead
            leftover.unlink(missing_ok=True)

    def lacks(self, digests: Sequence[Sha256]) -> list[Sha256]:
        return [each for each in digests if not self._blobs.has(each)]

    def keep(self, blobs: Sequence[bytes]) -> None:
        self._blobs.put(blobs)

    def seal(self, folder: Path, manifest: dict[str, Any]) -> None:
        manifest["snapshot"] = self._name
        snapshots = self._root / "snapshots"
        part = snapshots / f"{self._name}.part"
        shutil.copytree(folder, part)
        (part / MANIFEST).write_bytes(_written(manifest))
        barrier(self._root, sorted(part.iterdir()), [part, snapshots])
        part.rename(snapshots / self._name)
        barrier(self._root, (), [snapshots])


class _TarSink:
    def __init__(self, tar: tarfile.TarFile, name: str) -> None:
        self._tar = tar
        self._name = name
        self._held: set[Sha256] = set()

    def lacks(self, digests: Sequence[Sha256]) -> list[Sha256]:
        return [each for each in digests if each not in self._held]

    def keep(self, blobs: Sequence[bytes]) -> None:
        for data in blobs:
            digest = sha256(data)
            if digest not in self._held:
                self._held.add(digest)
                self._add(f"blobs/{digest}", data)

    def seal(self, folder: Path, manifest: dict[str, Any]) -> None:
        manifest["snapshot"] = self._name
        for path in sorted(folder.iterdir()):
            self._add(f"snapshot/{path.name}", path.read_bytes())
        self._add(f"snapshot/{MANIFEST}", _written(manifest))

    def _add(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        entry.mode = 0o644
        self._tar.addfile(entry, BytesIO(data))


@contextmanager
def _tar_sink(target: Path, name: str) -> Iterator[_TarSink]:
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                yield _TarSink(tar, name)
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
        barrier(target.parent, (), [target.parent])
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def archive(source: Path, snapshot: str | None = None) -> Iterator[Archive]:
    """Open a backup for reading.

    Args:
        source: A folder or a ``.tar`` file.
        snapshot: The name of one, or its number; the newest when ``None``.

    Raises:
        mdr.errors.UsageError: backup-not-found, backup-newer.
        mdr.errors.StoreError: backup-damaged.
    """
    try:
        if source.is_file():
            with tarfile.open(source, mode="r:") as tar:
                yield _TarArchive(tar)
            return
        found = [
            each
            for each in snapshots_of(source)
            if snapshot is None or each.name == snapshot or int(each.name[:6]) == _number(snapshot)
        ]
        if not found:
            raise UsageError(
                "backup-not-found",
                f"there is no backup in {source}"
                if snapshot is None
                else f"there is no snapshot {snapshot} in {source}",
                hint="name the folder or the .tar file that mdr backup wrote",
            )
        yield _FolderArchive(source, found[-1])
    except tarfile.TarError as error:
        raise damaged(str(source)) from error
    except OSError as error:
        raise StoreError(
            "backup-damaged",
            f"the backup {source} cannot be read: {error.strerror or error}",
            hint="check the disk",
        ) from error


def damaged(what: str) -> StoreError:
    """Describe a backup that is not what its manifest says."""
    return StoreError(
        "backup-damaged",
        f"{what} of the backup is damaged",
        hint="nothing was restored; use another snapshot or another copy",
    )


class _Checked:
    """Files are what the manifest says they are."""

    name: str
    manifest: dict[str, Any]

    def _open(self, data: bytes) -> None:
        try:
            manifest = json.loads(data)
            known, self.name = manifest["format"] == FORMAT, str(manifest["snapshot"])
            self._hashes: dict[str, str] = dict(manifest["files"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged("the manifest") from error
        if not known:
            raise UsageError(
                "backup-newer",
                f"the backup has the format {str(manifest['format'])[:80]!r}, which this mdr does not know",
                hint="use the mdr that wrote it, or a newer one",
            )
        self.manifest = manifest

    def file(self, name: str) -> bytes:
        data = self._bytes(name)
        if data is None or self._hashes.get(name) != sha256(data):
            raise damaged(name)
        return data

    def _bytes(self, name: str) -> bytes | None:
        raise NotImplementedError


class _FolderArchive(_Checked):
    def __init__(self, root: Path, snapshot: Path) -> None:
        self._snapshot = snapshot
        self._blobs = FileBlobStore(root)
        self._open(self._bytes(MANIFEST) or b"")

    def blob(self, digest: Sha256) -> bytes | None:
        return self._blobs.get(digest)

    def _bytes(self, name: str) -> bytes | None:
        path = self._snapshot / name
        return path.read_bytes() if path.is_file() else None


class _TarArchive(_Checked):
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {each.name: each for each in tar if each.isreg()}
        self._open(self._bytes(MANIFEST) or b"")

    def blob(self, digest: Sha256) -> bytes | None:
        data = self._member(f"blobs/{digest}")
        if data is not None and sha256(data) != digest:
            raise damaged(f"the blob {digest[:16]}")
        return data

    def _bytes(self, name: str) -> bytes | None:
        return self._member(f"snapshot/{name}")

    def _member(self, name: str) -> bytes | None:
        member = self._members.get(name)
        file = None if member is None else self._tar.extractfile(member)
        return None if file is None else file.read()


def snapshots_of(root: Path) -> list[Path]:
    """Return the snapshots of a folder, oldest first."""
    found = (root / "snapshots").glob("[0-9][0-9][0-9][0-9][0-9][0-9]-*")
    return sorted(each for each in found if each.is_dir() and each.suffix != ".part")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else -1


def _written(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
