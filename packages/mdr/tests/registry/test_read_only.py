"""``file:///DIR``: another's data folder is read where nothing can be written, and stays as it is."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from git_builder import skill

from mdr.errors import IntegrityError, StoreError
from mdr.reference.parse import parse
from mdr.registry import open_registry
from mdr.registry.checking import check
from mdr.registry.local import LocalRegistry
from mdr.registry.showing import show_artifact
from mdr.settings import Settings
from mdr.store.engine import open_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from git_builder import GitRepository

    from mdr.registry.indexing import Indexed

    IndexIt = Callable[[GitRepository], Indexed]

REF = parse("acme/tools/greet")
PATH = "skills/greet/SKILL.md"


def everything(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.suffix not in {".sqlite-shm", ".sqlite-wal"}  # of connections not yet collected
    }


def remote(settings: Settings, tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "own", registry=settings.data.as_uri())


def test_a_registry_on_a_read_only_disk_is_read_and_left_alone(
    repository: GitRepository,
    index: IndexIt,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository.commit({PATH: skill("greet")})
    index(repository)
    before = everything(settings.data)
    monkeypatch.setattr(os, "access", lambda *_arguments, **_more: False)
    registry = open_registry(remote(settings, tmp_path))
    assert show_artifact(registry, REF)["audit"]["grade"] == "A"
    assert everything(settings.data) == before


def test_a_writer_may_work_while_its_registry_is_read(
    repository: GitRepository, index: IndexIt, settings: Settings, tmp_path: Path
) -> None:
    repository.commit({PATH: skill("greet")})
    index(repository)
    registry = open_registry(remote(settings, tmp_path))
    first = registry.resolve(REF).version
    repository.commit({PATH: skill("greet", "second")})
    index(repository)
    assert registry.resolve(REF).version.label != first.label


def test_an_index_of_an_older_schema_is_not_touched(
    settings: Settings, repository: GitRepository, index: IndexIt, tmp_path: Path
) -> None:
    repository.commit({PATH: skill("greet")})
    index(repository)
    engine = open_database(settings.data, create=False)
    assert engine is not None
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0000'")
    engine.dispose()
    with pytest.raises(StoreError) as caught:
        open_registry(remote(settings, tmp_path)).resolve(REF)
    assert caught.value.code == "index-older"


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%41b", "a b", "ä"])
def test_a_data_folder_may_have_any_name(
    name: str, settings: Settings, repository: GitRepository, index: IndexIt, tmp_path: Path
) -> None:
    repository.commit({PATH: skill("greet")})
    index(repository)
    odd = tmp_path / name
    settings.data.rename(odd)
    moved = replace(settings, data=odd)
    assert LocalRegistry(moved).resolve(REF).artifact.path == PATH
    assert show_artifact(open_registry(remote(moved, tmp_path)), REF)["audit"]["grade"] == "A"


def test_nothing_is_shown_or_judged_without_bytes_that_are_lost(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry, settings: Settings
) -> None:
    repository.commit({PATH: skill("greet"), "skills/greet/run.sh": b"curl x | sh\n"})
    index(repository)
    resolved = registry.resolve(REF)
    lost = next(each for each in resolved.files if each.path == "run.sh")
    (settings.data / "blobs" / lost.sha256[:2] / lost.sha256[2:4] / lost.sha256[4:]).unlink()
    with pytest.raises(IntegrityError) as caught:
        show_artifact(registry, REF)
    assert caught.value.code == "blob-missing"
    assert "run.sh" in caught.value.message
    assert "mdr fsck --repair" in caught.value.hint


def test_a_registry_that_is_not_there_is_no_empty_registry(tmp_path: Path) -> None:
    absent = Settings(data=tmp_path / "own", registry=(tmp_path / "absent").as_uri())
    with pytest.raises(StoreError) as caught:
        open_registry(absent).resolve(REF)
    assert caught.value.code == "registry-missing"


def test_an_own_data_folder_that_became_read_only_is_still_read(
    repository: GitRepository,
    index: IndexIt,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository.commit({PATH: skill("greet")})
    index(repository)
    before = everything(settings.data)
    monkeypatch.setattr(os, "access", lambda *_arguments, **_more: False)
    assert index(repository).new_versions == 0
    assert show_artifact(LocalRegistry(settings), REF)["audit"]["grade"] == "A"
    assert check(settings, repair=False).ok
    assert everything(settings.data) == before
