"""The index: recording is idempotent, published versions stay, the schema is one step from its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mdr.store
from mdr.artifact.types import Artifact, Kind, Skipped
from mdr.digest import sha256
from mdr.errors import IntegrityError, StoreError
from mdr.store.engine import HEAD_REVISION, open_database, writing
from mdr.store.index import Index
from mdr.store.quick import known_source
from mdr.store.recording import ensure_source, record
from mdr.store.rows import Grade, NewArtifact, NewLine, NewRevision, NewVersion, Recorded
from mdr.store.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

DAY = 86_400
BASE = 1_767_225_600
ARTIFACT = Artifact(
    host="github.com", repository="Acme/Tools", path="a/SKILL.md", name="a", kind=Kind.SKILL
)


@pytest.fixture
def engine(tmp_path: Path, database: str | None) -> Iterator[Engine]:
    opened = open_database(tmp_path, create=True, address=database)
    assert opened is not None
    yield opened
    opened.dispose()


def version(
    commit: str, day: int, data: bytes = b"v", revisions: tuple[NewRevision, ...] = ()
) -> NewVersion:
    return NewVersion(
        commit=commit * 40,
        time=BASE + day * DAY,
        committed=f"2026-01-{day + 1:02}T00:00:00Z",
        size=len(data),
        sha256=sha256(data),
        manifest_sha256=sha256(b""),
        omitted=(Skipped(path="a/sub", reason="a submodule"),),
        revisions=revisions,
    )


def write(
    engine: Engine, *versions: NewVersion, artifact: Artifact = ARTIFACT, head: str = "h"
) -> Recorded:
    known = Index(engine).source(artifact.host, artifact.repository)
    line = NewLine(
        base=None if known is None else known.head,
        head=head,
        branch="main",
        location="/somewhere",
        commits=len(versions),
        artifacts=(NewArtifact(artifact=artifact, versions=versions),) if versions else (),
        manifests={sha256(b""): ""},
        objects={},
        grades=tuple(
            Grade(sha256=v.sha256, kind="skill", ruleset="r1", grade="A", penalty=0)
            for v in versions
        ),
        skipped=(Skipped(path="z", reason="why"),),
    )
    with writing(engine) as connection:
        source = ensure_source(connection, artifact.host, artifact.repository, "/somewhere")
        return record(connection, source, line)


def labels(engine: Engine) -> list[str]:
    return [each.label for each in Index(engine).versions(ARTIFACT, "r1")]


def test_recording_again_changes_nothing(engine: Engine) -> None:
    assert write(engine, version("1", 0), version("2", 1)).new_versions == 2
    before = _dump(engine)
    again = write(engine, version("1", 0), version("2", 1))
    assert (again.new_versions, again.refreshed) == (0, ())
    assert _dump(engine) == before


def test_versions_are_newest_first_and_know_their_equals(engine: Engine) -> None:
    write(engine, version("1", 0), version("2", 1, b"other"), version("3", 2))
    third, second, first = Index(engine).versions(ARTIFACT, "r1")
    assert (third.latest, second.latest, first.latest) == (True, False, False)
    assert third.same_bytes == (first.label,)
    assert second.same_bytes == ()
    assert third.grade == "A"


def test_topology_orders_what_the_clock_does_not(engine: Engine) -> None:
    write(engine, version("1", 9), version("2", 3))
    assert labels(engine) == ["git:20260104.2222222", "git:20260110.1111111"]


def test_a_force_push_keeps_published_versions_below_the_newest(engine: Engine) -> None:
    write(engine, version("1", 0), version("2", 5))
    write(engine, version("1", 0), version("3", 2), head="h2")
    assert labels(engine) == [
        "git:20260103.3333333",
        "git:20260106.2222222",
        "git:20260101.1111111",
    ]
    assert Index(engine).versions(ARTIFACT, "r1")[0].latest
    write(engine, version("1", 0), version("2", 5), head="h3")
    assert labels(engine)[0] == "git:20260106.2222222"


def test_an_artifact_that_leaves_the_line_is_hidden_and_kept(engine: Engine) -> None:
    write(engine, version("1", 0))
    write(engine, head="h2")
    (kept,) = Index(engine).artifacts_in(1)
    assert not kept.present
    assert labels(engine) == ["git:20260101.1111111"]


def test_a_label_is_never_given_twice(engine: Engine) -> None:
    first = replace(version("1", 0), commit="abcdef0" + "1" * 33)
    second = replace(version("1", 0), commit="abcdef0" + "2" * 33)
    write(engine, first)
    write(engine, second, head="h2")
    write(engine, second, first, head="h3")
    told = {v.commit: v.label for v in Index(engine).versions(ARTIFACT, "r1")}
    assert told == {first.commit: "git:20260101.abcdef0", second.commit: "git:20260101.abcdef02"}


def test_folder_revisions_are_added_once(engine: Engine) -> None:
    one = NewRevision(
        commit="8" * 40, committed="2026-01-03T00:00:00Z", manifest_sha256=sha256(b"")
    )
    two = NewRevision(
        commit="9" * 40, committed="2026-01-04T00:00:00Z", manifest_sha256=sha256(b"")
    )
    write(engine, version("1", 0, revisions=(one,)))
    write(engine, version("1", 0, revisions=(one, two)), head="h2")
    (found,) = Index(engine).versions(ARTIFACT, "r1")
    assert [each.commit[0] for each in found.folder_revisions] == ["9", "8"]


def test_lookup_ignores_case_and_display_keeps_it(engine: Engine) -> None:
    write(engine, version("1", 0))
    source = Index(engine).source("github.com", "ACME/tools")
    assert source is not None
    assert source.repository == "Acme/Tools"
    assert [each.name for each in Index(engine).artifacts_named(source.id, "A")] == ["a"]
    assert [each.path for each in Index(engine).artifacts_at(source.id, "A/skill.MD")] == [
        "a/SKILL.md"
    ]


def test_a_manifest_that_was_changed_is_noticed(engine: Engine) -> None:
    write(engine, version("1", 0))
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE manifests SET body = 'x'")
    with pytest.raises(IntegrityError) as caught:
        Index(engine).manifest(sha256(b""))
    assert caught.value.code == "manifest-corrupt"
    assert Index(engine).manifest(sha256(b"never")) is None


def test_a_failed_transaction_leaves_nothing(engine: Engine) -> None:
    with pytest.raises(StoreError), writing(engine) as connection:  # noqa: PT012 - the transaction is what fails
        ensure_source(connection, "h", "o/r", "x")
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)")
    assert Index(engine).sources() == []


def test_the_quick_answer_is_the_index_s_answer(
    engine: Engine, tmp_path: Path, database: str | None
) -> None:
    write(engine, version("1", 0), version("2", 1))
    quick = known_source(tmp_path, "github.com", "acme/TOOLS", "r1", database)
    slow = Index(engine)
    row = slow.source("github.com", "acme/tools")
    assert row is not None
    assert quick is not None
    assert (quick.source, quick.totals, quick.skipped) == (
        row,
        slow.totals(row.id),
        slow.skipped(row.id),
    )
    assert known_source(tmp_path, "github.com", "o/r", "r1", database) is None


def test_a_newer_schema_is_refused(engine: Engine, tmp_path: Path, database: str | None) -> None:
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        connection.exec_driver_sql("UPDATE registry_state SET needs = '9998'")
    with pytest.raises(StoreError) as caught:
        open_database(tmp_path, create=False, address=database)
    assert caught.value.code == "index-newer"
    assert known_source(tmp_path, "github.com", "acme/tools", "r1", database) is None


def test_a_newer_schema_that_works_with_this_program_is_used(
    engine: Engine, tmp_path: Path, database: str | None
) -> None:
    write(engine, version("1", 0))
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    again = open_database(tmp_path, create=True, address=database)
    assert again is not None
    assert write(again, version("1", 0), version("2", 1), head="h2").new_versions == 1
    with again.connect() as connection:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert found == "9999"
    again.dispose()


def test_a_run_whose_lock_was_lost_does_not_overwrite_another(engine: Engine) -> None:
    write(engine, version("1", 0))
    line = NewLine(
        base="older",
        head="h3",
        branch=None,
        location="x",
        commits=0,
        artifacts=(),
        manifests={},
        objects={},
        grades=(),
        skipped=(),
    )
    with pytest.raises(StoreError) as caught, writing(engine) as connection:
        record(connection, ensure_source(connection, "github.com", "acme/tools", "x"), line)
    assert caught.value.code == "index-moved"
    assert labels(engine) == ["git:20260101.1111111"]


def test_a_file_that_is_no_database_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError) as caught:
        open_database(tmp_path, create=True)
    assert caught.value.code == "index-unreadable"


def test_no_index_is_created_by_looking(tmp_path: Path) -> None:
    assert open_database(tmp_path, create=False) is None
    assert list(tmp_path.iterdir()) == []


def test_the_migrations_lead_to_the_schema_and_their_head_is_known(engine: Engine) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(mdr.store.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD_REVISION]
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": _ours})
        assert compare_metadata(context, metadata) == []


def test_the_schema_is_portable() -> None:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    for table in metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=postgresql.dialect()))


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or name in metadata.tables


def _dump(engine: Engine) -> list[tuple[object, ...]]:
    from sqlalchemy import select

    with engine.connect() as connection:
        return [
            tuple(row)
            for table in metadata.sorted_tables
            for row in connection.execute(select(table))
        ]
