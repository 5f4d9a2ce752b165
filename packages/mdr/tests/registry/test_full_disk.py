"""A disk that fills up while indexing: said in words, nothing published, the space given back."""

from __future__ import annotations

import errno
import os
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from git_builder import skill

from mdr import errors
from mdr.errors import MdrError, StoreError
from mdr.registry import harvest
from mdr.registry.checking import check
from mdr.registry.indexing import index_source
from mdr.store import files
from mdr.store.engine import unreadable

if TYPE_CHECKING:
    from git_builder import GitRepository

    from mdr.settings import Settings


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_told_and_staged_bytes_are_taken_back(
    repository: GitRepository, settings: Settings, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    repository.commit({f"skills/s{n}/SKILL.md": skill(f"s{n}", f"number {n}") for n in range(300)})
    real, room = files._write_all, iter(range(40))

    def write(descriptor: int, data: bytes) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, data)

    monkeypatch.setattr(files, "_write_all", write)
    monkeypatch.setattr(harvest, "SMALL", 20)  # so that other pieces run when the first one fails
    limited = replace(settings, workers=workers)
    with pytest.raises(StoreError) as caught:
        index_source(str(repository.path), limited, name_as="acme/tools")
    assert caught.value.code == "store-unwritable"
    assert "No space left" in caught.value.message
    store = files.FileBlobStore(settings.data)
    assert (list(store.digests()), store.leftovers()) == ([], [])
    monkeypatch.setattr(files, "_write_all", real)
    assert index_source(str(repository.path), limited, name_as="acme/tools").versions == 300
    assert check(settings, repair=False).ok


def test_leftovers_are_removed_even_when_the_database_cannot_be_opened(settings: Settings) -> None:
    settings.data.mkdir()
    (settings.data / "index.sqlite").write_bytes(b"no database")
    folder = settings.data / "blobs" / "ab" / "cd"
    folder.mkdir(parents=True)
    left = folder / f".{'e' * 60}.token-1"
    left.write_bytes(b"x")
    with pytest.raises(StoreError):
        check(settings, repair=True)
    assert not left.exists()


def test_an_error_crosses_processes_as_it_is() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    kinds = [each for each in kinds if issubclass(each, MdrError)]
    assert len(kinds) >= 10
    for kind in kinds:
        error = kind("some-code", "words", hint="do this", data={"a": 1})
        back = pickle.loads(pickle.dumps(error))  # noqa: S301, TID251 - our own bytes
        assert type(back) is kind
        assert (back.code, back.message, back.hint, back.data, str(back)) == (
            "some-code",
            "words",
            "do this",
            {"a": 1},
            "words",
        )


@pytest.mark.parametrize("words", ["database or disk is full", "disk I/O error"])
def test_a_database_without_room_says_so(words: str) -> None:
    error = unreadable(OSError(words))
    assert error.code == "store-unwritable"
    assert "free space" in error.hint
