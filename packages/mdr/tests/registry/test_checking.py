"""fsck: what is noticed, what is repaired, and that nothing is lost by repairing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from git_builder import skill

from mdr.digest import Sha256, sha256
from mdr.reference.parse import parse
from mdr.registry.checking import check
from mdr.store.files import FileBlobStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from git_builder import GitRepository

    from mdr.registry.indexing import Indexed
    from mdr.registry.local import LocalRegistry
    from mdr.settings import Settings


@pytest.fixture(autouse=True)
def _indexed(repository: GitRepository, index: Callable[[GitRepository], Indexed]) -> None:
    repository.commit({"s/SKILL.md": skill("s"), "s/a.txt": b"a"})
    index(repository)


@pytest.fixture
def blob(registry: LocalRegistry) -> Sha256:
    return registry.resolve(parse("acme/tools/s")).files[1].sha256


def damage(settings: Settings, digest: Sha256) -> None:
    path = FileBlobStore(settings.data).path_of(digest)
    path.chmod(0o644)
    path.write_bytes(b"rot")


def test_a_sound_store_is_clean(settings: Settings) -> None:
    done = check(settings, repair=False)
    assert (done.ok, done.problems, done.blobs, done.versions) == (True, (), 2, 1)


def test_rot_is_named_and_read_again_from_git(settings: Settings, blob: Sha256) -> None:
    damage(settings, blob)
    named = check(settings, repair=False)
    assert [(each.problem, each.what, each.repaired) for each in named.problems] == [
        ("blob-corrupt", blob, False)
    ]
    assert not named.ok
    assert check(settings, repair=True).ok
    assert FileBlobStore(settings.data).get(blob) == b"a"
    assert check(settings, repair=False).problems == ()


def test_a_lost_blob_is_read_again_from_git(settings: Settings, blob: Sha256) -> None:
    FileBlobStore(settings.data).remove(blob)
    assert [each.problem for each in check(settings, repair=False).problems] == ["blob-missing"]
    assert check(settings, repair=True).ok
    assert FileBlobStore(settings.data).get(blob) == b"a"


def test_without_the_repository_rot_stays_named_and_nothing_is_removed(
    settings: Settings, blob: Sha256, repository: GitRepository
) -> None:
    damage(settings, blob)
    repository.path.rename(repository.path.with_name("gone"))
    done = check(settings, repair=True)
    assert not done.ok
    assert FileBlobStore(settings.data).path_of(blob).read_bytes() == b"rot"


def test_a_blob_that_nothing_names_is_kept(settings: Settings) -> None:
    (name,) = FileBlobStore(settings.data).put([b"orphan"])
    assert check(settings, repair=True).problems == ()
    assert FileBlobStore(settings.data).has(name)


def test_leftovers_are_removed_by_repair_only(settings: Settings) -> None:
    store = FileBlobStore(settings.data)
    store.stage(sha256(b"x"), b"x")
    assert check(settings, repair=False).ok
    assert len(store.leftovers()) == 1
    assert [each.problem for each in check(settings, repair=True).problems] == ["leftover"]
    assert store.leftovers() == []


def test_a_changed_manifest_and_a_lost_one_are_named(settings: Settings) -> None:
    with closing(sqlite3.connect(settings.data / "index.sqlite")) as connection, connection:
        connection.execute("UPDATE manifests SET body = body || 'x'")
    done = check(settings, repair=True)
    assert {each.problem for each in done.problems} == {"manifest-corrupt", "manifest-missing"}
    assert not done.ok


def test_an_empty_or_absent_folder_is_clean(settings: Settings) -> None:
    from dataclasses import replace

    elsewhere = replace(settings, data=settings.data / "none")
    assert check(elsewhere, repair=False).ok
    assert not elsewhere.data.exists()
