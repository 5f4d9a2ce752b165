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
from mdr.store import finding
from mdr.store.engine import open_database, writing
from mdr.store.recording import ensure_source, record
from mdr.store.rows import Grade, NewArtifact, NewLine, NewVersion
from mdr.store.search import Document, Query, SearchIndex, encode_cursor, search_index
from mdr.store.spelling import edits
from mdr.store.state import changed

if TYPE_CHECKING:
    from collections.abc import Iterator
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
def search(tmp_path: Path, database: str | None) -> Iterator[SearchIndex]:
    engine = open_database(tmp_path, create=True, address=database)
    assert engine is not None
    found = search_index(engine)
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
            hosts = ("example.com", f"{name.lower()}.example.org")
            texts.append(
                Document(artifact=artifact, text=body, sha256=digest, hosts=hosts, tools=("Bash",))
            )
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
            changed(connection)
    yield found
    engine.dispose()


def names(search: SearchIndex, words: str, **facets: str) -> list[str]:
    query = replace(Query(words=words), **facets)  # type: ignore[arg-type]
    return [hit.artifact.name for hit in search.search(query, "r1").hits]


def test_the_name_weighs_more_than_the_text(search: SearchIndex) -> None:
    assert names(search, "recompute") == ["recompute", "pdf-forms"]


@pytest.mark.parametrize("typo", ["recomptue", "recompte", "recommpute", "rekompute"])
def test_a_typo_finds_the_word(search: SearchIndex, typo: str) -> None:
    assert names(search, typo)[0] == "recompute"


def test_every_word_must_fit(search: SearchIndex) -> None:
    assert names(search, "activation memory") == ["recompute"]
    assert names(search, "activation zzzzzz") == []


def test_a_beginning_is_enough_and_accents_do_not_count(search: SearchIndex) -> None:
    assert names(search, "recomp")[0] == "recompute"
    assert names(search, "uberblick") == ["AGENTS"]
    assert names(search, "ÜBERBLICK") == ["AGENTS"]


def test_parts_of_a_name_are_words(search: SearchIndex) -> None:
    assert names(search, "forms") == ["pdf-forms"]
    assert names(search, "pdf-forms") == ["pdf-forms"]


@pytest.mark.parametrize("words", ['"', "a AND", "NEAR(", "*", "name:x", "') OR 1", "-", "\x00"])
def test_no_word_is_an_operator(search: SearchIndex, words: str) -> None:
    assert search.search(Query(words=words), "r1").total >= 0


def test_without_words_everything_in_order(search: SearchIndex) -> None:
    assert names(search, "") == ["AGENTS", "pdf-forms", "recompute", "a"]


def test_facets_filter_and_count_what_is_left(search: SearchIndex) -> None:
    page = search.search(Query(kind="skill", owner="ACME"), "r1")
    assert page.total == 2
    assert page.facets["grade"] == {"A": 1, "B": 1}
    assert page.facets["owner"] == {"acme": 2}
    assert page.facets["host"] == {"github.com": 2}
    assert page.facets["mentions"] == {
        "example.com": 2,
        "pdf-forms.example.org": 1,
        "recompute.example.org": 1,
    }
    assert page.facets["tool"] == {"Bash": 2}
    assert page.facets["license"] == {}


def test_each_facet_filters_by_its_value_whatever_its_case(search: SearchIndex) -> None:
    assert names(search, "", mentions="A.example.org") == ["a"]
    assert names(search, "", mentions="example.com", tool="bash", grade="a") == [
        "AGENTS",
        "recompute",
    ]
    assert names(search, "", mentions="github.com") == []
    assert names(search, "", host="GitHub.com", owner="other") == ["a"]
    assert names(search, "", host="example.com") == []
    assert names(search, "activation", owner="other", kind="Skill") == ["a"]
    assert names(search, "", owner="acm") == []


def test_a_document_is_replaced_with_its_words_hosts_and_tools(
    search: SearchIndex, tmp_path: Path, database: str | None
) -> None:
    engine = open_database(tmp_path, create=False, address=database)
    assert engine is not None
    (hit,) = search.search(Query(words="megatron"), "r1").hits
    with writing(engine) as connection:
        document = Document(artifact=hit.artifact, text="different", hosts=("new.example",))
        search.refresh(connection, [document])
        changed(connection)
    engine.dispose()
    assert names(search, "megatron") == names(search, "megatorn") == []
    assert names(search, "diferent", mentions="new.example") == ["recompute"]
    assert names(search, "", mentions="recompute.example.org") == []
    assert search.search(Query(), "r1").facets["mentions"]["new.example"] == 1


@pytest.mark.parametrize("words", ["", "acme", "a"])
def test_cursors_walk_through_everything_once(search: SearchIndex, words: str) -> None:
    whole = [hit.artifact.id for hit in search.search(Query(words=words), "r1").hits]
    for limit in (1, 2, 3):
        seen, cursor = [], None
        while True:
            page = search.search(Query(words=words, limit=limit, cursor=cursor), "r1")
            seen += [hit.artifact.id for hit in page.hits]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == whole
        assert len(seen) == len(set(seen)) == page.total > 0


def test_what_is_added_before_a_cursor_repeats_and_loses_nothing(
    search: SearchIndex, tmp_path: Path, database: str | None
) -> None:
    first = search.search(Query(limit=2), "r1")
    engine = open_database(tmp_path, create=False, address=database)
    assert engine is not None
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE artifacts SET present = false WHERE name = 'AGENTS'")
        changed(connection)
    engine.dispose()
    rest = search.search(Query(limit=2, cursor=first.next_cursor), "r1")
    assert [hit.artifact.name for hit in first.hits] == ["AGENTS", "pdf-forms"]
    assert [hit.artifact.name for hit in rest.hits] == ["recompute", "a"]
    assert rest.total == 3


def test_a_cursor_belongs_to_its_query(search: SearchIndex) -> None:
    cursor = search.search(Query(limit=1), "r1").next_cursor
    for other in (Query(cursor=cursor, kind="skill"), Query(cursor=cursor, words="acme")):
        with pytest.raises(UsageError) as caught:
            search.search(other, "r1")
        assert caught.value.code == "bad-cursor"


@pytest.mark.parametrize("text", ["\ud800", "\x00", 1, None, ["a"]])
def test_a_cursor_with_the_right_mark_and_odd_contents_is_refused(
    search: SearchIndex, text: object
) -> None:
    for words, score in (("", None), ("acme", 1.0), ("acme", float("nan")), ("acme", float("inf"))):
        value = "a" if score not in {None, 1.0} else text
        cursor = encode_cursor(Query(words=words), [score, "github.com", value, "p"])
        with pytest.raises(UsageError) as caught:
            search.search(Query(words=words, cursor=cursor), "r1")
        assert caught.value.code == "bad-cursor"


@pytest.fixture
def head_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search has more hits than the text ranks."""
    monkeypatch.setattr(finding, "RANKED", 0)


@pytest.mark.usefixtures("head_only")
def test_of_many_hits_the_text_finds_and_the_rest_ranks(search: SearchIndex) -> None:
    assert names(search, "recompute") == ["recompute", "pdf-forms"]
    first, last = search.search(Query(words="recompute"), "r1").hits
    assert first.score is not None
    assert first.score > 0
    assert last.score == 0
    assert names(search, "activation licences") == ["a"]
    assert names(search, "recomptue")[0] == "recompute"
    assert names(search, "nothing") == ["a"]
    assert names(search, "tools", owner="acme", grade="b") == ["pdf-forms"]


@pytest.mark.usefixtures("head_only")
@pytest.mark.parametrize("words", ["acme", "a", "recompute", "activation"])
def test_cursors_of_many_hits_walk_through_everything_once(
    search: SearchIndex, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [hit.artifact.id for hit in search.search(Query(words=words), "r1").hits]
    first = search.search(Query(words=words, limit=1), "r1")
    monkeypatch.setattr(finding, "RANKED", 1_000)  # as if most of them had gone meanwhile
    seen, cursor = [hit.artifact.id for hit in first.hits], first.next_cursor
    while cursor is not None:
        page = search.search(Query(words=words, limit=1, cursor=cursor), "r1")
        seen += [hit.artifact.id for hit in page.hits]
        cursor = page.next_cursor
    assert seen == whole


def test_a_word_that_begins_another_asks_nothing_more(search: SearchIndex) -> None:
    both, one = (
        search.search(Query(words=each), "r1") for each in ("act activation", "activation")
    )
    assert [hit.artifact.id for hit in both.hits] == [hit.artifact.id for hit in one.hits]
    assert both.facets == one.facets
    assert names(search, "act a mem") == ["recompute"]


def test_where_something_fits_no_word_is_respelled(search: SearchIndex) -> None:
    assert names(search, "form", kind="instructions") == []  # a word that exists is meant
    assert names(search, "fprms") == names(search, "forms") == ["pdf-forms"]
    assert names(search, "fprms", kind="instructions") == []


def test_of_each_facet_the_hundred_most_frequent_values_are_told(
    search: SearchIndex, tmp_path: Path, database: str | None
) -> None:
    engine = open_database(tmp_path, create=False, address=database)
    assert engine is not None
    hits = search.search(Query(), "r1").hits
    with writing(engine) as connection:
        for number, hit in enumerate(hits):
            many = tuple(f"Tool{each:03}" for each in range(number, 105))
            document = Document(artifact=hit.artifact, text="x", tools=many)
            search.refresh(connection, [document])
        changed(connection)
    engine.dispose()
    tools = search.search(Query(), "r1").facets["tool"]
    assert list(tools.items()) == [(f"Tool{each:03}", 4) for each in range(3, 103)]
    found = search.search(Query(words="x"), "r1").facets["tool"]
    assert list(found.items()) == list(tools.items())


def test_a_word_said_often_is_one_word(search: SearchIndex) -> None:
    once, often = (
        search.search(Query(words=each), "r1") for each in ("recompute", "recompute-" * 40)
    )
    assert [hit.artifact.id for hit in once.hits] == [hit.artifact.id for hit in often.hits]
    assert [hit.score for hit in once.hits] == [hit.score for hit in often.hits]


@pytest.mark.parametrize("cursor", ["", "x", "e30", "eyJhZnRlciI6LTF9", "é", "W10", "bnVsbA"])
def test_a_cursor_of_one_s_own_is_refused(search: SearchIndex, cursor: str) -> None:
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
