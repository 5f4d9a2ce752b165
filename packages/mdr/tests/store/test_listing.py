"""The lists that pages show, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from git_builder import GitRepository, skill

from mdr.digest import sha256
from mdr.registry.indexing import index_source
from mdr.registry.stores import Stores, open_stores
from mdr.settings import Settings
from mdr.store import listing


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    settings = Settings(data=tmp_path / "data", index_on_demand=False, workers=1)
    if request.param == "postgresql":
        settings = replace(settings, database=request.getfixturevalue("postgres_url"))
    repository = GitRepository(tmp_path / "r.git")
    repository.commit({"skills/b/SKILL.md": skill("b"), "skills/a/SKILL.md": skill("a")})
    repository.commit({"skills/c/SKILL.md": skill("a"), "skills/b/SKILL.md": None})
    index_source(str(repository.path), settings, name_as="Acme/Tools")
    index_source(str(repository.path), settings, name_as="Acme-Labs/Other")
    opened = open_stores(settings, create=False)
    assert opened is not None
    yield opened
    opened.close()


def test_sums_count_what_exists(stores: Stores) -> None:
    assert listing.sums(stores.index) == listing.Sums(sources=2, artifacts=4, versions=6)


def test_the_newest_come_first_and_deleted_files_never(stores: Stores) -> None:
    names = [each.name for each in listing.newest(stores.index, "r1", 10)]
    assert names == ["c", "c", "a", "a"]
    assert {each.grade for each in listing.newest(stores.index, "r1", 10)} == {"A"}
    assert len(listing.newest(stores.index, "r1", 1)) == 1


def test_a_repository_is_listed_in_parts_with_deleted_files_last(stores: Stores) -> None:
    source = stores.index.source("github.com", "acme/tools")
    assert source is not None
    assert listing.count_of_source(stores.index, source.id) == 3
    parts = [
        listing.of_source(stores.index, source.id, "r1", offset=offset, limit=2)
        for offset in (0, 2)
    ]
    rows = [each for part in parts for each in part]
    assert [(each.name, each.present) for each in rows] == [("a", True), ("c", True), ("b", False)]


def test_an_owner_is_a_whole_word_whatever_its_case(stores: Stores) -> None:
    found = listing.of_owner(stores.index, "ACME")
    assert [(each.repository, each.artifacts) for each in found] == [("Acme/Tools", 2)]
    assert listing.of_owner(stores.index, "acm") == ()
    assert listing.of_owner(stores.index, "acme%") == ()


def test_bytes_are_found_in_every_version_that_has_them(stores: Stores) -> None:
    places = listing.with_bytes(stores.index, sha256(skill("a")), 10)
    assert sorted((each.repository, each.name) for each in places) == [
        ("Acme-Labs/Other", "a"), ("Acme-Labs/Other", "c"), ("Acme/Tools", "a"), ("Acme/Tools", "c"),
    ]  # fmt: skip
    assert listing.with_bytes(stores.index, sha256(b""), 10) == ()


def test_numbered_artifacts_cover_all_that_exist(stores: Stores) -> None:
    last = listing.last_number(stores.index)
    assert last == 6
    rows = listing.numbered(stores.index, 1, last)
    assert len({each for each, _ in rows}) == len(rows) == 4
    assert listing.numbered(stores.index, last + 1, last + 9) == ()
    assert listing.beside(stores.index, "m", 9)
