"""Both blob stores keep the contract; the one on disk keeps more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdr.digest import Sha256, sha256
from mdr.errors import IntegrityError, StoreError
from mdr.store import durable
from mdr.store.blobs import MemoryBlobStore
from mdr.store.files import FileBlobStore
from mdr.store.testing import SAMPLES, BlobStoreContract

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryBlobStore(BlobStoreContract):
    def store(self) -> MemoryBlobStore:
        return MemoryBlobStore()


class TestFileBlobStore(BlobStoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self._root = tmp_path

    def store(self) -> FileBlobStore:
        return FileBlobStore(self._root)


class TestFileBlobStoreWithoutSyncfs(TestFileBlobStore):
    """Where the system has no barrier for a whole file system, every file and folder is synced."""

    @pytest.fixture(autouse=True)
    def _portable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(durable, "_syncfs", lambda _root: False)


def test_the_layout_is_two_two_rest(tmp_path: Path) -> None:
    (name,) = FileBlobStore(tmp_path).put([b"data"])
    path = tmp_path / "blobs" / name[:2] / name[2:4] / name[4:]
    assert path.read_bytes() == b"data"
    assert path.stat().st_mode & 0o222 == 0


def test_content_is_never_rewritten(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    (name,) = store.put([b"data"])
    before = store.path_of(name).stat()
    late = store.stage(name, b"data")
    store.publish([late])
    after = store.path_of(name).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert store.leftovers() == []


def test_flipped_bits_are_noticed_on_reading(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    (name,) = store.put([b"data"])
    path = store.path_of(name)
    path.chmod(0o644)
    path.write_bytes(b"dara")
    with pytest.raises(IntegrityError) as caught:
        store.get(name)
    assert caught.value.code == "blob-corrupt"


def test_a_disk_that_gives_other_bytes_back_publishes_nothing(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    staged = store.stage(sha256(b"data"), b"dat")
    with pytest.raises(StoreError) as caught:
        store.publish([staged])
    assert caught.value.code == "store-readback"
    assert not store.has(sha256(b"data"))


def test_a_writer_that_died_leaves_only_temporary_files(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    name = sha256(b"data")
    store.stage(name, b"data")
    assert store.get(name) is None
    assert list(store.digests()) == []
    assert len(store.leftovers()) == 1


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file in the way")
    with pytest.raises(StoreError) as caught:
        FileBlobStore(tmp_path).put([b"data"])
    assert caught.value.code == "store-unwritable"


def test_names_that_are_no_hashes_are_not_listed(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    names = store.put(SAMPLES)
    folder = store.path_of(names[0]).parent
    (folder / "README").write_text("x")
    (folder / ("f" * 60)).symlink_to("/etc/passwd")
    assert set(store.digests()) == set(names)


def test_nothing_but_a_hash_is_a_name(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        FileBlobStore(tmp_path).get(Sha256("../../etc/passwd"))
