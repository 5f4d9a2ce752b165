"""Everything a registry does, on every database and every blob store; and moves between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from git_builder import GitRepository, program, skill

from mdr.digest import sha256
from mdr.errors import BadReference, Refusal, StoreError, UsageError
from mdr.reference.parse import parse
from mdr.registry.backup import backup
from mdr.registry.checking import check
from mdr.registry.indexing import index_source, quiet
from mdr.registry.local import LocalRegistry
from mdr.registry.reading import Reading
from mdr.registry.restore import restore
from mdr.registry.showing import show_artifact
from mdr.registry.stores import Stores, open_stores
from mdr.registry.withdrawals import lift, tombstone, tombstone_of, unyank, yank
from mdr.settings import Settings
from mdr.store.search import Query
from mdr.store.state import state_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACES = ["sqlite+files", "postgresql+files", "sqlite+s3", "postgresql+s3"]
GREET = parse("acme/tools/greet")


def settings_of(request: pytest.FixtureRequest, place: str, data: Path) -> Settings:
    database, blobs = place.split("+")
    return Settings(
        data=data,
        index_on_demand=False,
        database=request.getfixturevalue("postgres_url") if database == "postgresql" else None,
        blobs=request.getfixturevalue("s3_address") if blobs == "s3" else None,
    )


@pytest.fixture(params=PLACES)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    return settings_of(request, request.param, tmp_path / "data")


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    made = GitRepository(tmp_path / "r.git")
    made.commit(
        {
            "a/greet/SKILL.md": skill("greet", "see https://first.example/x " * 5),
            "a/greet/run.sh": program(b"echo one\n"),
            "b/other/SKILL.md": skill("other", "wobbly words"),
        }
    )
    made.commit({"a/greet/SKILL.md": skill("greet", "see https://second.example/x " * 5)})
    return made


@pytest.fixture
def stores(settings: Settings, repository: GitRepository) -> Iterator[Stores]:
    index_source(str(repository.path), settings, name_as="Acme/Tools")
    opened = open_stores(settings, create=False)
    assert opened is not None
    yield opened
    opened.close()


@pytest.fixture
def registry(settings: Settings, stores: Stores) -> LocalRegistry:
    return LocalRegistry(settings, stores)


def found(registry: LocalRegistry, **asked: Any) -> list[str]:
    return [hit.artifact.name for hit in registry.search(Query(**asked)).hits]


def test_what_is_indexed_is_shown_found_and_sound(
    settings: Settings, registry: LocalRegistry, repository: GitRepository
) -> None:
    document = show_artifact(registry, GREET)
    assert [each["latest"] for each in document["versions"]] == [True, False]
    assert document["audit"]["grade"] == "A"
    resolved = registry.resolve(GREET)
    assert [each.path for each in resolved.files] == ["SKILL.md", "run.sh"]
    assert registry.blob(resolved.files[1].sha256) == b"echo one\n"
    assert found(registry, words="wobly") == ["other"]
    assert found(registry, mentions="second.example") == ["greet"]
    assert found(registry, mentions="first.example") == []
    checked = check(settings, repair=False)
    assert (checked.problems, checked.versions, checked.blobs) == ((), 3, 4)
    again = index_source(str(repository.path), settings, name_as="acme/tools")
    assert (again.new_versions, again.versions) == (0, 3)


def test_a_yanked_version_is_not_offered_and_still_served(
    registry: LocalRegistry, stores: Stores, repository: GitRepository, settings: Settings
) -> None:
    artifact, (new, old) = registry.versions(GREET)
    before = state_token(stores)
    yank(stores, artifact, new.label, reason="broken  on\nWindows", by="ann")
    assert state_token(stores) != before
    latest = registry.resolve(GREET)
    assert latest.version.label == old.label
    assert latest.artifact.latest == old.label
    assert latest.notes[0] == f"{new.label} is newer and was withdrawn: broken on Windows"
    exact = registry.resolve(parse(f"acme/tools/greet@{new.label}"))
    assert exact.version.yanked is not None
    assert exact.version.yanked.reason == "broken on Windows"
    assert exact.notes[0] == f"{new.label} was yanked: broken on Windows"
    assert registry.resolve(parse(f"acme/tools/greet@sha256:{new.sha256}")).version.yanked
    assert found(registry, mentions="first.example") == ["greet"]
    assert found(registry, mentions="second.example") == []
    repository.commit({"b/other/SKILL.md": skill("other", "changed")})
    index_source(str(repository.path), settings, name_as="acme/tools")
    assert registry.resolve(GREET).version.label == old.label
    assert found(registry, mentions="first.example") == ["greet"]
    unyank(stores, artifact, new.label, by="ann")
    assert registry.resolve(GREET).version.label == new.label
    with pytest.raises(BadReference):
        unyank(stores, artifact, new.label, by="ann")


def test_when_everything_is_yanked_the_newest_is_offered_with_a_warning(
    registry: LocalRegistry, stores: Stores
) -> None:
    artifact, versions = registry.versions(GREET)
    for each in versions:
        yank(stores, artifact, each.label, reason="all", by="ann")
    resolved = registry.resolve(GREET)
    assert resolved.version.label == versions[0].label
    assert resolved.notes[0] == f"{versions[0].label} was yanked: all"


def test_bytes_under_a_tombstone_are_served_to_nobody(
    registry: LocalRegistry, stores: Stores, settings: Settings, repository: GitRepository
) -> None:
    _, (new, old) = registry.versions(GREET)
    tombstone(stores, new.sha256, reason="steals keys", advisory="GHSA-1", by="bob")
    for ask in (
        lambda: registry.blob(new.sha256),
        lambda: registry.resolve(parse(f"acme/tools/greet@{new.label}")),
        lambda: registry.resolve(parse(f"acme/tools/greet@sha256:{new.sha256}")),
        lambda: Reading(stores, settings).blob(new.sha256),
    ):
        with pytest.raises(Refusal) as caught:
            ask()
        assert caught.value.code == "tombstone"
        assert caught.value.data["sha256"] == new.sha256
        assert caught.value.data["reason"] == "steals keys"
        assert caught.value.data["advisory"] == "GHSA-1"
        assert "see GHSA-1; choose another version" in caught.value.hint
    assert registry.resolve(GREET).version.label == old.label
    assert [each.label for each in registry.versions(GREET)[1]] == [new.label, old.label]
    tombstone(stores, old.sha256, reason="as well", by="bob")
    with pytest.raises(Refusal):
        registry.resolve(GREET)
    assert (
        found(registry, mentions="second.example")
        == found(registry, mentions="first.example")
        == []
    )
    repository.commit({"b/other/SKILL.md": skill("other", "changed")})
    index_source(str(repository.path), settings, name_as="acme/tools")
    assert found(registry, mentions="second.example") == []
    lift(stores, new.sha256, by="bob")
    assert registry.resolve(GREET).version.label == new.label
    assert tombstone_of(stores, new.sha256) is None
    assert found(registry, mentions="second.example") == ["greet"]
    assert check(settings, repair=False).problems == ()


def test_a_tombstone_on_a_file_beside_refuses_every_folder_with_it(
    registry: LocalRegistry, stores: Stores
) -> None:
    tombstone(stores, sha256(b"echo one\n"), reason="virus", by="bob")
    with pytest.raises(Refusal) as caught:
        registry.resolve(GREET)
    assert caught.value.data["sha256"] == sha256(b"echo one\n")
    assert registry.resolve(parse("acme/tools/other")).version.latest


def test_bytes_can_be_refused_before_they_come(
    settings: Settings,
    tmp_path: Path,
    repository: GitRepository,
    registry: LocalRegistry,
    stores: Stores,
) -> None:
    bad = skill("late", "malice https://malice.example")
    tombstone(stores, sha256(bad), reason="known elsewhere", by="bob")
    repository.commit({"c/late/SKILL.md": bad})
    index_source(str(repository.path), settings, name_as="acme/tools")
    with pytest.raises(Refusal):
        registry.resolve(parse("acme/tools/late"))
    assert found(registry, words="malice") == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("target", ["folder", "file.tar"])
def test_a_backup_is_restored_anywhere(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    repository: GitRepository,
    place: str,
    target: str,
) -> None:
    source = Settings(data=tmp_path / "origin", index_on_demand=False)
    index_source(str(repository.path), source, name_as="Acme/Tools")
    kept = open_stores(source, create=False)
    assert kept is not None
    artifact, (new, old) = LocalRegistry(source).versions(GREET)
    yank(kept, artifact, old.label, reason="old", by="ann")
    kept.close()
    done = backup(source, tmp_path / target, quiet)
    assert (done.blobs, done.new_blobs, done.missing) == (4, 4, ())
    into = settings_of(request, place, tmp_path / "there")
    checked = restore(into, tmp_path / target, quiet, check_only=True)
    assert checked.checked_only
    assert not (tmp_path / "there").exists()
    restored = restore(into, tmp_path / target, quiet)
    assert (restored.rows, restored.blobs) == (done.rows, 4)
    there = open_stores(into, create=False)
    assert there is not None
    registry = LocalRegistry(into, there)
    assert registry.versions(GREET) == LocalRegistry(source).versions(GREET)
    assert registry.resolve(GREET).files == LocalRegistry(source).resolve(GREET).files
    assert found(registry, words="wobly") == ["other"]
    assert found(registry, mentions="second.example") == ["greet"]
    assert check(into, repair=False).problems == ()
    yank(there, artifact, new.label, reason="keys go on where they were", by="ann")
    repository.commit({"c/more/SKILL.md": skill("more")})
    assert index_source(str(repository.path), into, name_as="acme/tools").new_versions == 1
    with pytest.raises(UsageError) as caught:
        restore(into, tmp_path / target, quiet)
    assert caught.value.code == "restore-not-empty"
    there.close()


def test_a_backup_of_any_place_comes_home(
    settings: Settings, stores: Stores, registry: LocalRegistry, tmp_path: Path
) -> None:
    backup(settings, tmp_path / "b", quiet)
    home = Settings(data=tmp_path / "home", index_on_demand=False)
    restore(home, tmp_path / "b", quiet)
    assert LocalRegistry(home).versions(GREET) == registry.versions(GREET)
    assert check(home, repair=False).problems == ()


def test_two_processes_index_into_one_place(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a data folder of its own, as on two machines, where the place allows that."""
    repository = GitRepository(tmp_path / "big.git")
    repository.commit({f"s{n}/SKILL.md": skill(f"s{n}") for n in range(20)})
    apart = settings.database is not None and settings.blobs is not None
    env = os.environ | {"MDR_DATABASE": settings.database or "", "MDR_BLOBS": settings.blobs or ""}
    jobs = [("acme/tools", "one"), ("acme/tools", "two"), ("acme/copies", "two")]
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "mdr", "index", str(repository.path), "--as", name, "--json",
             "--data", str(tmp_path / machine if apart else settings.data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        for name, machine in jobs
    ]  # fmt: skip
    outputs = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    new = [json.loads(out)["sources"][0]["new_versions"] for out, _ in outputs]
    assert sorted(new) == [0, 20, 20]
    checked = check(settings, repair=False)
    assert (checked.problems, checked.versions, checked.blobs) == ((), 40, 20)


def test_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    away = Settings(data=tmp_path, database="postgresql://mdr@127.0.0.1:1/none")
    with pytest.raises(StoreError) as caught:
        open_stores(away, create=True)
    assert caught.value.code == "database-unreachable"


@pytest.mark.parametrize("address", ["mysql://x/y", "postgresql://host", "nonsense"])
def test_an_address_of_no_database_is_a_usage_error(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_stores(Settings(data=tmp_path, database=address), create=True)
    assert caught.value.code == "bad-database"
    assert address not in str(caught.value)


def test_another_registry_is_read_whatever_the_own_one_is(
    tmp_path: Path, repository: GitRepository
) -> None:
    plain = Settings(data=tmp_path / "plain", index_on_demand=False)
    index_source(str(repository.path), plain, name_as="acme/tools")
    own = Settings(data=tmp_path, database="postgresql://mdr@127.0.0.1:1/none", blobs="s3://none")
    other = replace(own, registry=plain.data.as_uri())
    from mdr.registry import open_registry

    assert open_registry(other).resolve(GREET).version.latest
