"""Search: ranking, facets, cursors, typos."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.artifact.types import Artifact, Kind
from mdr.digest import sha256
from mdr.errors import UsageError
from mdr.store.engine import open_database, writing
from mdr.store.recording import ensure_source, record
from mdr.store.rows import Grade, NewArtifact, NewLine, NewVersion
from mdr.store.search import Query, SqliteSearch, edits

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = {
    "acme/tools": [
        (
            "skills/recompute/SKILL.md",
            "recompute",
            Kind.SKILL,
            "Save activation memory",
            "Megatron text",
            "A",
        ),
        (
            "skills/pdf-forms/SKILL.md",
            "pdf-forms",
            Kind.SKILL,
            "Fill forms",
            "mentions recompute once",
            "B",
        ),
        ("AGENTS.md", "AGENTS", Kind.INSTRUCTIONS, None, "Überblick of the tools", "A"),
    ],
    "Other/repo": [("a/SKILL.md", "a", Kind.SKILL, "Activation of licences", "nothing", "F")],
}


@pytest.fixture
def search(tmp_path: Path) -> SqliteSearch:
    engine = open_database(tmp_path, create=True)
    assert engine is not None
    found = SqliteSearch(engine)
    for repository, rows in DOCUMENTS.items():
        new, grades, texts = [], [], []
        for path, name, kind, description, body, grade in rows:
            artifact = Artifact(
                host="github.com",
                repository=repository,
                path=path,
                name=name,
                kind=kind,
                description=description,
            )
            digest = sha256(f"{repository}{path}".encode())
            version = NewVersion(
                commit=digest[:40],
                time=1_767_225_600,
                committed="2026-01-01T00:00:00Z",
                size=1,
                sha256=digest,
                manifest_sha256=sha256(b""),
                omitted=(),
                revisions=(),
            )
            new.append(NewArtifact(artifact=artifact, versions=(version,)))
            grades.append(
                Grade(sha256=digest, kind=kind.value, ruleset="r1", grade=grade, penalty=0)
            )
            texts.append((artifact, body))
        line = NewLine(
            head="h",
            branch=None,
            location="x",
            commits=1,
            artifacts=tuple(new),
            manifests={},
            objects={},
            grades=tuple(grades),
            skipped=(),
        )
        with writing(engine) as connection:
            record(connection, ensure_source(connection, "github.com", repository, "x"), line)
            found.refresh(connection, texts)
    return found


def names(search: SqliteSearch, words: str, **facets: str) -> list[str]:
    query = replace(Query(words=words), **facets)  # type: ignore[arg-type]
    return [hit.artifact.name for hit in search.search(query, "r1").hits]


def test_the_name_weighs_more_than_the_text(search: SqliteSearch) -> None:
    assert names(search, "recompute") == ["recompute", "pdf-forms"]


@pytest.mark.parametrize("typo", ["recomptue", "recompte", "recommpute", "rekompute"])
def test_a_typo_finds_the_word(search: SqliteSearch, typo: str) -> None:
    assert names(search, typo)[0] == "recompute"


def test_every_word_must_fit(search: SqliteSearch) -> None:
    assert names(search, "activation memory") == ["recompute"]
    assert names(search, "activation zzzzzz") == []


def test_a_beginning_is_enough_and_accents_do_not_count(search: SqliteSearch) -> None:
    assert names(search, "recomp")[0] == "recompute"
    assert names(search, "uberblick") == ["AGENTS"]
    assert names(search, "ÜBERBLICK") == ["AGENTS"]


def test_parts_of_a_name_are_words(search: SqliteSearch) -> None:
    assert names(search, "forms") == ["pdf-forms"]
    assert names(search, "pdf-forms") == ["pdf-forms"]


@pytest.mark.parametrize("words", ['"', "a AND", "NEAR(", "*", "name:x", "') OR 1", "-", "\x00"])
def test_no_word_is_an_operator(search: SqliteSearch, words: str) -> None:
    assert search.search(Query(words=words), "r1").total >= 0


def test_without_words_everything_in_order(search: SqliteSearch) -> None:
    assert names(search, "") == ["AGENTS", "pdf-forms", "recompute", "a"]


def test_facets_filter_and_count_what_is_left(search: SqliteSearch) -> None:
    page = search.search(Query(kind="skill", owner="ACME"), "r1")
    assert page.total == 2
    assert page.facets["grade"] == {"A": 1, "B": 1}
    assert page.facets["owner"] == {"acme": 2}
    assert page.facets["host"] == {"github.com": 2}
    assert page.facets["license"] == {}


def test_cursors_walk_through_everything_once(search: SqliteSearch) -> None:
    seen, cursor = [], None
    while True:
        page = search.search(Query(limit=3, cursor=cursor), "r1")
        seen += [hit.artifact.id for hit in page.hits]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == page.total == 4


@pytest.mark.parametrize("cursor", ["", "x", "e30", "eyJhZnRlciI6LTF9", "é"])
def test_a_cursor_of_one_s_own_is_refused(search: SqliteSearch, cursor: str) -> None:
    with pytest.raises(UsageError) as caught:
        search.search(Query(cursor=cursor), "r1")
    assert caught.value.code == "bad-cursor"


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_edits_is_a_distance(left: str, right: str) -> None:
    found = edits(left, right, 6)
    assert found == edits(right, left, 6)
    assert found is not None
    assert (found == 0) is (left == right)
    assert abs(len(left) - len(right)) <= found <= max(len(left), len(right))


def test_edits_gives_up_beyond_the_limit() -> None:
    assert edits("abcdef", "uvwxyz", 2) is None
    assert edits("ab", "ba", 1) == 1
