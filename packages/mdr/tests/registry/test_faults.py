"""Kills, restarts and damage: no lost or torn version, no wrong answer, recovery by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from git_builder import GitRepository, skill
from postgres_server import PostgresServer, why_not

from mdr.errors import StoreError, UsageError
from mdr.reference.parse import parse
from mdr.registry import archive, restore
from mdr.registry.backup import backup
from mdr.registry.checking import check
from mdr.registry.indexing import index_source, quiet
from mdr.registry.local import LocalRegistry
from mdr.registry.stores import open_stores
from mdr.settings import Pool, Settings
from mdr.store.files import FileBlobStore
from mdr.store.state import state_token

if TYPE_CHECKING:
    from collections.abc import Iterator

HARNESS = Path(__file__).with_name("crash_harness.py")
REF = parse("acme/tools/s0")


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    made = GitRepository(tmp_path / "r.git")
    made.commit({f"s{n}/SKILL.md": skill(f"s{n}") for n in range(4)} | {"s0/a.txt": b"a"})
    made.commit({"s0/SKILL.md": skill("s0", "second " * 50)})
    return made


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, to be killed."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    started = PostgresServer()
    yield started
    started.remove()


@pytest.mark.parametrize("moment", [3, 14, 27, 33, 38, 44])
def test_an_indexer_killed_at_any_moment_leaves_postgresql_whole(
    tmp_path: Path, repository: GitRepository, postgres_url: str, moment: int
) -> None:
    settings = Settings(data=tmp_path / "data", index_on_demand=False, database=postgres_url)
    words = [str(settings.data), str(repository.path), str(moment), postgres_url]
    run = subprocess.run([sys.executable, str(HARNESS), *words], check=False, capture_output=True)
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    assert check(settings, repair=True).ok
    done = index_source(str(repository.path), settings, name_as="acme/tools")
    assert done.versions == 5
    checked = check(settings, repair=False)
    assert (checked.problems, checked.versions) == ((), 5)


def test_a_lock_of_a_killed_indexer_is_free_at_once(
    tmp_path: Path, repository: GitRepository, postgres_url: str
) -> None:
    """Killed where it holds the lock of the repository; the server sees its connection end."""
    settings = Settings(data=tmp_path / "other", index_on_demand=False, database=postgres_url)
    words = [str(tmp_path / "data"), str(repository.path), "12", postgres_url]
    run = subprocess.run([sys.executable, str(HARNESS), *words], check=False, capture_output=True)
    assert run.returncode == -signal.SIGKILL
    assert index_source(str(repository.path), settings, name_as="acme/tools").new_versions == 5


def test_a_database_killed_and_started_again_under_load(
    tmp_path: Path, repository: GitRepository, server: PostgresServer
) -> None:
    pool = Pool(size=4, wait_seconds=5)
    settings = Settings(
        data=tmp_path / "data",
        index_on_demand=False,
        database=server.url(server.create()),
        pool=pool,
    )
    index_source(str(repository.path), settings, name_as="acme/tools")
    stores = open_stores(settings, create=False)
    assert stores is not None
    registry = LocalRegistry(settings, stores)
    right, token = registry.resolve(REF), state_token(stores)
    stop, wrong, failures = threading.Event(), [], []

    def read() -> int:
        answers = 0
        while not stop.is_set():
            try:
                if registry.resolve(REF) != right or state_token(stores) != token:
                    wrong.append("another answer")
                answers += 1
            except StoreError as error:
                failures.append(error.code)
        return answers

    with ThreadPoolExecutor(4) as readers:
        running = [readers.submit(read) for _ in range(4)]
        try:
            while not failures:
                server.kill()
                server.start()
            assert registry.resolve(REF) == right
            assert state_token(stores) == token
        finally:
            stop.set()
        answers = [each.result() for each in running]
    assert wrong == []
    assert min(answers) > 0
    assert set(failures) <= {"database-unreachable", "database-busy", "index-unreadable"}, failures
    repository.commit({"s9/SKILL.md": skill("s9")})
    assert index_source(str(repository.path), settings, name_as="acme/tools").new_versions == 1
    assert check(settings, repair=False).ok
    stores.close()


def test_a_database_that_is_away_while_indexing_is_told_and_loses_nothing(
    tmp_path: Path, repository: GitRepository, server: PostgresServer
) -> None:
    settings = Settings(
        data=tmp_path / "data", index_on_demand=False, database=server.url(server.create())
    )
    index_source(str(repository.path), settings, name_as="acme/tools")
    before = LocalRegistry(settings).versions(REF)
    repository.commit({"s0/SKILL.md": skill("s0", "third " * 50)})
    server.stop("immediate")
    with pytest.raises(StoreError) as caught:
        index_source(str(repository.path), settings, name_as="acme/tools")
    assert caught.value.code == "database-unreachable"
    server.start()
    stores = open_stores(settings, create=False)
    assert stores is not None
    assert LocalRegistry(settings, stores).versions(REF) == before
    stores.close()
    assert index_source(str(repository.path), settings, name_as="acme/tools").new_versions == 1


def test_a_pool_without_a_free_connection_says_so(tmp_path: Path, postgres_url: str) -> None:
    pool = Pool(size=1, wait_seconds=0)
    stores = open_stores(Settings(data=tmp_path, database=postgres_url, pool=pool), create=False)
    assert stores is not None
    with stores.index.reading() as one, stores.index.reading() as two:
        one.exec_driver_sql("SELECT 1")
        two.exec_driver_sql("SELECT 1")
        with pytest.raises(StoreError) as caught:
            stores.index.sources()
    assert caught.value.code == "database-busy"
    assert stores.index.sources() == []
    stores.close()


def test_a_statement_that_takes_too_long_is_ended(tmp_path: Path, postgres_url: str) -> None:
    pool = Pool(statement_seconds=1)
    stores = open_stores(Settings(data=tmp_path, database=postgres_url, pool=pool), create=False)
    assert stores is not None
    with pytest.raises(StoreError) as caught, stores.index.reading() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(60)")
    assert caught.value.code == "database-busy"
    stores.close()


def test_a_full_disk_of_the_database_says_so() -> None:
    import psycopg

    from mdr.store.engine import unreadable

    error = unreadable(psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert error.code == "store-unwritable"
    assert "free space" in error.hint


@pytest.fixture
def kept(tmp_path: Path, repository: GitRepository) -> Settings:
    settings = Settings(data=tmp_path / "data", index_on_demand=False)
    index_source(str(repository.path), settings, name_as="acme/tools")
    backup(settings, tmp_path / "b", quiet)
    return settings


def test_backups_of_one_folder_share_blobs_and_each_comes_back(
    tmp_path: Path, kept: Settings, repository: GitRepository
) -> None:
    repository.commit({"s9/SKILL.md": skill("s9")})
    index_source(str(repository.path), kept, name_as="acme/tools")
    second = backup(kept, tmp_path / "b", quiet)
    assert (second.blobs, second.new_blobs) == (7, 1)
    for number, versions in (("1", 5), ("2", 6)):
        into = replace(kept, data=tmp_path / number)
        restore.restore(into, tmp_path / "b", quiet, snapshot=number)
        assert check(into, repair=False).versions == versions
    with pytest.raises(UsageError) as caught:
        restore.restore(kept, tmp_path / "b", quiet, snapshot="3")
    assert caught.value.code == "backup-not-found"


@pytest.mark.parametrize("where", ["keep", "seal", "rename"])
def test_a_backup_that_died_hurts_no_other(
    tmp_path: Path,
    kept: Settings,
    repository: GitRepository,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    repository.commit({"s9/SKILL.md": skill("s9")})
    index_source(str(repository.path), kept, name_as="acme/tools")

    def dies(*_arguments: object, **_words: object) -> None:
        raise KeyboardInterrupt

    owner, name = {
        "keep": (FileBlobStore, "publish"),
        "seal": (archive, "barrier"),
        "rename": (Path, "rename"),
    }[where]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dies)
        with pytest.raises(KeyboardInterrupt):
            backup(kept, tmp_path / "b", quiet)
    assert restore.restore(kept, tmp_path / "b", quiet, check_only=True).snapshot.startswith(
        "000001-"
    )
    again = backup(kept, tmp_path / "b", quiet)
    assert again.snapshot.startswith("000002-")
    assert [path.name for path in (tmp_path / "b" / "snapshots").glob("*.part")] == []
    assert FileBlobStore(tmp_path / "b").leftovers() == []


def test_a_tar_that_was_not_finished_is_not_there(
    tmp_path: Path, kept: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "b.tar"
    with monkeypatch.context() as patched:
        patched.setattr(
            archive._TarSink, "seal", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        with pytest.raises(StoreError) as caught:
            backup(kept, target, quiet)
    assert caught.value.code == "store-unwritable"
    assert list(tmp_path.glob("b.tar*")) == []
    backup(kept, target, quiet)
    with pytest.raises(UsageError) as twice:
        backup(kept, target, quiet)
    assert twice.value.code == "backup-exists"


def test_a_restore_that_died_is_run_again(
    tmp_path: Path, kept: Settings, database: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = replace(kept, data=tmp_path / "there", database=database)

    def dies(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(restore, "_compute", dies)
        with pytest.raises(KeyboardInterrupt):
            restore.restore(into, tmp_path / "b", quiet)
    assert check(into, repair=False).versions == 0
    restore.restore(into, tmp_path / "b", quiet)
    assert check(into, repair=False).versions == 5


@pytest.mark.parametrize("what", ["blob", "lost blob", "table", "manifest", "list"])
def test_a_damaged_backup_is_told_and_nothing_is_restored(
    tmp_path: Path, kept: Settings, what: str
) -> None:
    (snapshot,) = (tmp_path / "b" / "snapshots").iterdir()
    blobs = FileBlobStore(tmp_path / "b")
    path = {
        "blob": blobs.path_of(next(blobs.digests())),
        "lost blob": blobs.path_of(next(blobs.digests())),
        "table": snapshot / "versions.jsonl.gz",
        "manifest": snapshot / "manifest.json",
        "list": snapshot / "blobs.gz",
    }[what]
    if what == "lost blob":
        path.unlink()
    else:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-9] + b"x" * 8)
    for into in (replace(kept, data=tmp_path / "there"), None):
        with pytest.raises(StoreError) as caught:
            restore.restore(into or kept, tmp_path / "b", quiet, check_only=into is None)
        assert caught.value.code == "backup-damaged"
    if (tmp_path / "there").exists():
        assert check(replace(kept, data=tmp_path / "there"), repair=False).versions == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"format": "mdr-backup/9"}, "backup-newer"),
        ({"tables": {"sources": {"columns": ["id", "new"], "rows": 1}}}, "backup-newer"),
        ({"tables": {"unknown": {"columns": [], "rows": 0}}}, "backup-newer"),
        ({"tables": []}, "backup-damaged"),
        ({"tables": {"sources": 1}}, "backup-damaged"),
        ({"missing": None}, "backup-damaged"),
        ({"files": 1}, "backup-damaged"),
    ],
)
def test_a_manifest_that_says_something_else(
    tmp_path: Path, kept: Settings, change: dict[str, object], code: str
) -> None:
    import json

    (path,) = (tmp_path / "b" / "snapshots").glob("*/manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((StoreError, UsageError)) as caught:
        restore.restore(kept, tmp_path / "b", quiet, check_only=True)
    assert caught.value.code == code


@pytest.mark.parametrize("data", [b"", b"no tar", b"\x00" * 10_240])
def test_a_file_that_is_no_backup(tmp_path: Path, kept: Settings, data: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(StoreError) as caught:
        restore.restore(kept, tmp_path / "x.tar", quiet, check_only=True)
    assert caught.value.code == "backup-damaged"


def test_a_backup_tells_what_is_lost_and_keeps_the_rest(tmp_path: Path, kept: Settings) -> None:
    store = FileBlobStore(kept.data)
    lost = LocalRegistry(kept).resolve(REF).version.sha256
    store.path_of(lost).unlink()
    assert backup(kept, tmp_path / "c", quiet).missing == (lost,)
    into = replace(kept, data=tmp_path / "there")
    assert restore.restore(into, tmp_path / "c", quiet).missing == (lost,)
    assert check(into, repair=True).ok
    assert LocalRegistry(into).blob(lost) is not None
