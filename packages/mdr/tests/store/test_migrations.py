"""Steps only add: what a program of an earlier step wrote stays, and what it writes still works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.config import Config

import mdr.store
from mdr.artifact.types import Artifact, Kind
from mdr.errors import StoreError
from mdr.store import engine as opening
from mdr.store.engine import HEAD_REVISION, open_database, writing
from mdr.store.index import Index
from mdr.store.search import Query, search_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

SOURCE = (
    "INSERT INTO sources (id, host, repository, repository_key, location, head, commits) "
    "VALUES ({id}, 'github.com', 'Acme/T{id}', 'acme/t{id}', '/x', 'h', 1)"
)
ARTIFACT = (
    "INSERT INTO artifacts (id, source_id, path, name, name_key, kind, latest, latest_sha256, present, "
    "previously) VALUES ('{key}', {id}, 'a/SKILL.md', 'A', 'a', 'skill', 'git:20260101.1111111', "
    "'{sha}', true, '[]')"
)
VERSION = (
    "INSERT INTO versions (artifact_id, position, on_line, label, commit_oid, committed, size, sha256, "
    "manifest_sha256, omitted) VALUES ('{key}', 0, true, 'git:20260101.1111111', '1', "
    "'2026-01-01T00:00:00Z', 1, '{sha}', '{sha}', '[]')"
)
GRADE = "INSERT INTO grades (sha256, kind, ruleset, grade, penalty) VALUES ('{sha}', 'skill', 'r1', 'A', 0)"
WORDS = (
    "INSERT INTO search (rowid, artifact_id, name, description, repository, body) "
    "VALUES ({id}, '{key}', 'A', '', 'acme t', 'wobbly words')"
)
"""Statements as a program of step 0001 writes them."""

MADE_ANEW = {
    "step_0004_searching.py": ("DROP TABLE search_words", "DROP TABLE search", "DROP TABLE held")
}
"""What a step makes anew with the same columns, or made itself; a test above writes to it as before."""


@pytest.fixture
def first(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Engine, Path, str | None]]:
    """A database of step 0001 with one artifact in it."""
    address = None
    if request.param == "postgresql":
        address = request.getfixturevalue("empty_postgres_url")
    with monkeypatch.context() as patched:
        patched.setattr(opening, "HEAD_REVISION", "0001")
        engine = open_database(tmp_path, create=True, address=address)
    assert engine is not None
    write(engine, 1)
    yield engine, tmp_path, address
    engine.dispose()


def write(engine: Engine, number: int) -> None:
    statements = [SOURCE, ARTIFACT, VERSION, GRADE]
    if engine.dialect.name == "sqlite":
        statements.append(WORDS)
    with writing(engine) as connection:
        for statement in statements:
            values = {"id": number, "sha": str(number) * 64, "key": key(number)}
            connection.exec_driver_sql(statement.format(**values))


def key(number: int) -> str:
    repository = f"Acme/T{number}"
    artifact = Artifact(
        host="github.com", repository=repository, path="a/SKILL.md", name="A", kind=Kind.SKILL
    )
    return artifact.id


both = pytest.mark.parametrize("first", ["sqlite", "postgresql"], indirect=True)


@both
def test_an_older_index_comes_up_to_date_with_all_it_holds(
    first: tuple[Engine, Path, str | None],
) -> None:
    _, data, address = first
    engine = open_database(data, create=False, address=address)
    assert engine is not None
    with engine.connect() as connection:
        step = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert step == HEAD_REVISION
    index = Index(engine)
    (artifact,) = index.artifacts_in(1)
    assert [each.grade for each in index.versions(artifact, "r1")] == ["A"]
    assert [digest for _, digest in index.unread(1)] == ["1" * 64]
    if address is None:
        found = search_index(engine)
        assert [hit.artifact.name for hit in found.search(Query(words="wobly"), "r1").hits] == ["A"]
    engine.dispose()


@both
def test_a_program_of_an_earlier_step_reads_and_writes_on(
    first: tuple[Engine, Path, str | None],
) -> None:
    old, data, address = first
    engine = open_database(data, create=False, address=address)
    assert engine is not None
    write(old, 2)
    with writing(old) as connection:
        connection.exec_driver_sql("UPDATE artifacts SET present = false WHERE source_id = 1")
        connection.exec_driver_sql("UPDATE sources SET head = 'h2' WHERE id = 1")
        rows = connection.exec_driver_sql(
            "SELECT source_id, present FROM artifacts ORDER BY source_id"
        ).all()
    assert [(row[0], bool(row[1])) for row in rows] == [(1, False), (2, True)]
    assert [each.id for each in Index(engine).sources()] == [1, 2]
    found = search_index(engine)
    page = found.search(Query(), "r1")
    assert [hit.artifact.path for hit in page.hits] == ["a/SKILL.md"]
    assert page.facets["grade"] == {"A": 1}
    if address is None:
        again = found.search(Query(words="wobb"), "r1")
        assert [hit.artifact.ref for hit in again.hits] == ["acme/t2/A"]
    engine.dispose()


@both
def test_the_database_keeps_for_an_older_program_what_that_does_not_know(
    first: tuple[Engine, Path, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, data, address = first
    with monkeypatch.context() as patched:
        patched.setattr(opening, "HEAD_REVISION", "0002")
        second = open_database(data, create=False, address=address)
    assert second is not None
    mention = "INSERT INTO mentions (artifact_id, what, value) VALUES ('{key}', 'tool', 'Bash')"
    with writing(second) as connection:
        connection.exec_driver_sql(mention.format(key=key(1)))
    engine = open_database(data, create=False, address=address)
    assert engine is not None
    write(old, 2)
    with writing(second) as connection:
        connection.exec_driver_sql(mention.format(key=key(2)))
        connection.exec_driver_sql(GRADE.format(sha="3" * 64))
        moved = "UPDATE artifacts SET latest_sha256 = '{sha}' WHERE source_id = 1"
        connection.exec_driver_sql(moved.format(sha="3" * 64))
        newer = GRADE.format(sha="2" * 64).replace("'r1', 'A'", "'r10', 'F'")
        for statement in (newer, newer.replace("'r10', 'F'", "'r9', 'B'")):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("UPDATE registry_state SET changes = changes + 1")
    with engine.connect() as connection:
        kept = "SELECT source_id, latest_sha256, grade, graded_by FROM artifacts ORDER BY source_id"
        assert connection.exec_driver_sql(kept).all() == [
            (1, "3" * 64, "A", "r1"),
            (2, "2" * 64, "F", "r10"),
        ]
    found = search_index(engine)
    for ruleset, grades in (("r1", {"A": 2}), ("r10", {"F": 1}), ("r9", {"B": 1})):
        assert found.search(Query(), ruleset).facets["grade"] == grades
    assert [hit.grade for hit in found.search(Query(), "r9").hits] == [None, "B"]
    assert found.search(Query(tool="bash"), "r1").total == 2
    with writing(engine) as connection:  # as where another transaction held the rows
        connection.exec_driver_sql("UPDATE artifacts SET grade = NULL, graded_by = NULL")
        connection.exec_driver_sql("UPDATE registry_state SET changes = changes + 1")
    for ruleset, letter, number in (
        ("r1", "A", 2),
        ("r10", "f", 1),
        ("r9", "b", 1),
        ("r9", "a", 0),
    ):
        page = found.search(Query(grade=letter), ruleset)
        assert page.total == len(page.hits) == number
    for each in (second, engine):
        each.dispose()


@both
def test_an_older_index_that_is_only_read_is_left_alone(
    first: tuple[Engine, Path, str | None],
) -> None:
    old, data, address = first
    with pytest.raises(StoreError) as caught:
        open_database(data, create=False, read_only=True, address=address)
    assert caught.value.code == "index-older"
    with old.connect() as connection:
        step = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert step == "0001"


@both
def test_a_step_that_fails_leaves_the_one_before(
    first: tuple[Engine, Path, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, data, address = first
    real = command.upgrade

    def fails(config: Config, revision: str) -> None:
        real(config, revision)
        raise RuntimeError("no power")

    with monkeypatch.context() as patched:
        patched.setattr(command, "upgrade", fails)
        with pytest.raises(RuntimeError):
            open_database(data, create=False, address=address)
    with old.connect() as connection:
        step = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert step == "0001"
    engine = open_database(data, create=False, address=address)
    assert engine is not None
    assert len(Index(engine).sources()) == 1
    engine.dispose()


def test_every_step_says_what_it_needs_and_nothing_is_dropped() -> None:
    """A step that removes or renames would break the servers that still run."""
    folder = Path(mdr.store.__file__).parent / "migrations" / "versions"
    steps = sorted(folder.glob("step_*.py"))
    assert len(steps) >= 2
    for step in steps:
        source = step.read_text("utf-8")
        for statement in MADE_ANEW.get(step.name, ()):
            assert statement in source
            source = source.replace(statement, "")
        for word in ("drop_", "rename_", "alter_column", "DROP ", "RENAME "):
            assert word not in source, (step.name, word)
