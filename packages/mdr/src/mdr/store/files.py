"""The blob store on a file system: ``blobs/ab/cd/rest``, raw bytes, read-only.

How a batch is written, so that a kill or a power loss at any moment leaves only whole blobs under
their final names:

1. every blob goes to its own temporary file ``.rest.random`` in the folder of its final name (new files
   then spread over the disk's allocation groups: twice as fast as one folder for all of them);
2. a barrier makes their content durable;
3. each is read back and hashed;
4. each is renamed to its final name, which is atomic; a name that exists is left as it is;
5. a second barrier makes the names durable. Only then may an index point to them.

A crash leaves temporary files at worst; ``fsck --repair`` removes them while no indexer holds the
store lock.
"""

from __future__ import annotations

import itertools
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mdr.digest import Sha256, is_sha256, same, sha256
from mdr.errors import IntegrityError, StoreError
from mdr.store.durable import barrier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BATCH: Final = 512
"""Blobs that :meth:`FileBlobStore.put` holds between two barriers."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A blob whose bytes are written, not yet under its name."""

    digest: Sha256
    temporary: str
    """Path of the file that holds it."""


def new_token() -> str:
    """Return a name for the temporary files of one run."""
    return secrets.token_hex(8)


class FileBlobStore:
    """Implements :class:`mdr.store.blobs.BlobStore` below one folder."""

    def __init__(self, root: Path, token: str | None = None) -> None:
        """Open the store below ``root``; stores of one ``token`` can take back what each other staged."""
        self.root = root
        self.blobs = root / "blobs"
        self._token = token or new_token()
        self._count = itertools.count()

    def put(self, blobs: Iterable[bytes]) -> list[Sha256]:
        """Keep ``blobs`` durably, ``BATCH`` at a time."""
        names: list[Sha256] = []
        batch: list[bytes] = []
        for data in blobs:
            batch.append(data)
            if len(batch) >= BATCH:
                names += self._put_batch(batch)
                batch = []
        return names + (self._put_batch(batch) if batch else [])

    def _put_batch(self, blobs: Sequence[bytes]) -> list[Sha256]:
        names = [sha256(data) for data in blobs]
        fresh = {name: data for name, data in zip(names, blobs, strict=True) if not self.has(name)}
        self.publish([self.stage(name, data) for name, data in fresh.items()])
        return names

    def offer(self, digest: Sha256, data: bytes) -> Staged | None:
        """Stage a blob that is not held."""
        return None if self.has(digest) else self.stage(digest, data)

    def stage(self, digest: Sha256, data: bytes) -> Staged:
        """Write one blob beside its final name. Steps of several processes may mix freely.

        Raises:
            mdr.errors.StoreError: store-unwritable.
        """
        final = self._text_path(digest)
        folder, _, name = final.rpartition("/")
        unique = f"{os.getpid():x}-{id(self):x}-{next(self._count):x}"
        temporary = f"{folder}/.{name}.{self._token}-{unique}"
        try:
            descriptor = _create(temporary, folder)
            try:
                _write_all(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        return Staged(digest, temporary)

    def flush(self) -> None:
        """Nothing is left to do: what was staged is written."""

    def close(self) -> None:
        """Nothing is open."""

    def publish(self, staged: Sequence[Staged]) -> None:
        """Make staged blobs durable and give them their names: content, barrier, names, barrier.

        Raises:
            mdr.errors.StoreError: store-unwritable, store-readback.
        """
        self.settle_content(staged)
        self.settle_names(self.rename(staged))

    def settle_content(self, staged: Sequence[Staged]) -> None:
        """Return when the content of staged blobs is on the disk."""
        if staged:
            barrier(self.blobs, (Path(each.temporary) for each in staged), ())

    def rename(self, staged: Sequence[Staged]) -> set[str]:
        """Read staged blobs back and rename them; return the folders whose entries changed."""
        folders: set[str] = set()
        for each in staged:
            folder = self._rename(each)
            if folder is not None:
                folders |= {folder, os.path.dirname(folder), str(self.blobs)}  # noqa: PTH120 - ten times faster in bulk
        return folders

    def settle_names(self, folders: set[str]) -> None:
        """Return when the names in ``folders`` are on the disk."""
        if folders:
            barrier(self.blobs, (), (Path(each) for each in sorted(folders, reverse=True)))

    def verify_staged(self, staged: Staged) -> None:
        """Read a staged blob back and compare its hash.

        Raises:
            mdr.errors.StoreError: store-readback.
        """
        try:
            with open(staged.temporary, "rb", buffering=0) as file:  # noqa: PTH123 - ten times faster in bulk
                found = sha256(file.read())
        except OSError as error:
            raise _unwritable(self.root, error) from error
        if not same(found, staged.digest):
            raise StoreError(
                "store-readback",
                "bytes read back from the disk are not those that were written",
                hint="check the disk; nothing was published",
                data={"sha256": staged.digest},
            )

    def get(self, digest: Sha256) -> bytes | None:
        """Return verified bytes, ``None`` when they are not held."""
        try:
            data = self.path_of(digest).read_bytes()
        except FileNotFoundError:
            return None
        if not same(sha256(data), digest):
            raise IntegrityError(
                "blob-corrupt",
                f"the stored bytes of {digest} have another hash",
                hint="run mdr fsck --repair",
                data={"sha256": digest, "found": sha256(data)},
            )
        return data

    def get_many(self, digests: Sequence[Sha256]) -> dict[Sha256, bytes | None]:
        """Return several blobs."""
        return {digest: self.get(digest) for digest in digests}

    def has(self, digest: Sha256) -> bool:
        """Say whether ``digest`` is held."""
        return os.path.exists(self._text_path(digest))  # noqa: PTH110 - ten times faster in bulk

    def digests(self) -> Iterator[Sha256]:
        """Yield everything held; names that are no hashes are not."""
        for path in self._entries():
            name = Sha256(path.parent.parent.name + path.parent.name + path.name)
            if is_sha256(name):
                yield name

    def leftovers(self) -> list[Path]:
        """Return temporary files. They belong to a dead writer when no indexer holds the store lock."""
        return [path for path in self._entries() if path.name.startswith(".")]

    def take_back(self) -> None:
        """Remove what stores of this token staged and never published; a full disk needs the space."""
        for path in self.leftovers():
            if f".{self._token}" in path.name:
                with suppress(OSError):
                    path.unlink()

    def _entries(self) -> Iterator[Path]:
        for first in _folders(self.blobs):
            for second in _folders(Path(first)):
                for entry in sorted(os.scandir(second), key=lambda each: each.name):
                    if entry.is_file(follow_symlinks=False):
                        yield Path(entry.path)

    def path_of(self, digest: Sha256) -> Path:
        """Return where the bytes of ``digest`` are or would be."""
        return Path(self._text_path(digest))

    def remove(self, digest: Sha256) -> None:
        """Take corrupt bytes away; only ``fsck --repair`` calls this."""
        self.path_of(digest).unlink(missing_ok=True)

    def _text_path(self, digest: Sha256) -> str:
        assert is_sha256(digest), digest
        return f"{self.blobs}/{digest[:2]}/{digest[2:4]}/{digest[4:]}"

    def _rename(self, staged: Staged) -> str | None:
        """Move one blob to its name; return the folder that changed, ``None`` when the name was taken."""
        self.verify_staged(staged)
        final = self._text_path(staged.digest)
        try:
            if os.path.exists(final):  # noqa: PTH110 - as above
                os.unlink(staged.temporary)  # noqa: PTH108 - as above
                return None
            os.rename(staged.temporary, final)  # noqa: PTH104 - as above
        except OSError as error:
            raise _unwritable(self.root, error) from error
        return final.rpartition("/")[0]


def _create(path: str, folder: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o444)
    except FileNotFoundError:
        _make_folder(folder)
        return os.open(path, flags, 0o444)


def _make_folder(folder: str) -> None:
    """Create a folder whose parent mostly exists; another process may do the same."""
    try:
        os.mkdir(folder)  # noqa: PTH102 - as above
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as above


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _folders(path: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(
            entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)
        )
    return []


def _unwritable(root: Path, error: OSError) -> StoreError:
    return StoreError(
        "store-unwritable",
        f"the data folder cannot be written: {error.strerror or error}",
        hint="check free space and permissions, or name another folder with --data",
        data={"folder": str(root)},
    )
