"""Where bytes come from: order, checks, parallel requests, and a real repository at a locked commit."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from registry_simulator import skill_text

from mdr.digest import Sha256, sha256
from mdr.errors import MdrError, SourceError
from mdr.install.fetch import Fetcher
from mdr.install.git_host import GitHost, address_of
from mdr.install.sources import CacheSource, blob_sources
from mdr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from conftest import Bench

    from mdr.install.lock import Entry
    from mdr.version.types import FileEntry


@dataclass
class Fake:
    """A source that holds some blobs and remembers what it was asked for."""

    name: str
    blobs: Mapping[Sha256, bytes]
    remote: bool = False
    fails: bool = False
    asked: list[str] = field(default_factory=list)

    def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
        self.asked += [file.path for file in files]
        if self.fails:
            raise SourceError("git-failed", "no route to host")
        return {f.sha256: self.blobs[f.sha256] for f in files if f.sha256 in self.blobs}


@pytest.fixture
def entry(bench: Bench) -> Entry:
    bench.registry.add("demo", {"SKILL.md": skill_text("demo"), "a": b"A", "b": b"B"})
    return bench.entry("acme/skills/demo")


def test_each_place_is_asked_only_for_what_nearer_ones_lack(bench: Bench, entry: Entry) -> None:
    blobs = bench.registry.blobs
    cache = Fake("cache", {sha256(b"A"): b"A"})
    registry = Fake("registry", {sha256(b"B"): b"B"})
    host, never = Fake("git host", blobs), Fake("index", blobs)
    kept: list[bytes] = []
    fetcher = Fetcher((cache, registry, host, never), keep=kept.extend)
    assert fetcher.gather([entry]) == {}
    assert cache.asked == ["SKILL.md", "a", "b"]
    assert registry.asked == ["SKILL.md", "b"]
    assert host.asked == ["SKILL.md"]
    assert never.asked == []
    assert sorted(kept) == sorted([b"B", skill_text("demo")])
    assert fetcher.read(sha256(b"A")) == b"A"


def test_a_lying_place_is_passed_over_when_another_is_honest(bench: Bench, entry: Entry) -> None:
    liar = Fake("registry", {file.sha256: b"lie" for file in entry.files})
    kept: list[bytes] = []
    fetcher = Fetcher(
        (Fake("cache", {}), liar, Fake("git host", bench.registry.blobs)), keep=kept.extend
    )
    assert fetcher.gather([entry]) == {}
    assert b"lie" not in kept
    alone = Fetcher((Fake("cache", {}), liar)).gather([entry])
    assert {error.code for error in alone.values()} == {"hash-mismatch"}


def test_a_right_hash_with_a_wrong_size_is_refused(bench: Bench, entry: Entry) -> None:
    wrong = replace(entry, files=tuple(replace(file, size=file.size + 1) for file in entry.files))
    failures = Fetcher((Fake("cache", bench.registry.blobs),)).gather([wrong])
    assert {error.code for error in failures.values()} == {"hash-mismatch"}


def test_what_every_place_said_is_told(entry: Entry) -> None:
    failures = Fetcher((Fake("cache", {}), Fake("git host", {}, fails=True))).gather([entry])
    (error,) = failures.values()
    assert error.code == "bytes-not-found"
    assert "cache, git host" in error.message
    assert "no route to host" in error.message
    assert len(error.data["sha256"]) == 3


def test_remote_requests_overlap(bench: Bench) -> None:
    """All four requests must be under way before any is answered, else the barrier breaks."""
    for name in ("a", "b", "c", "d"):
        bench.registry.add(name)
    entries = [bench.entry(f"acme/skills/{name}") for name in ("a", "b", "c", "d")]
    together = threading.Barrier(4, timeout=20)

    class Slow(Fake):
        def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
            together.wait()
            return super().get(entry, files)

    steps: list[tuple[int, int]] = []
    slow = Slow("registry", bench.registry.blobs, remote=True)
    fetcher = Fetcher(
        (Fake("cache", {}), slow), progress=lambda done, total: steps.append((done, total))
    )
    assert fetcher.gather(entries) == {}
    assert steps[-4:] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_order_of_places_is_the_contract_s(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, registry="file:///elsewhere")
    names = [source.name for source in blob_sources(settings)]
    assert names == ["cache", "registry", "git host", "index"]
    assert [s.name for s in blob_sources(settings, frozen=True)] == [
        "cache",
        "registry",
        "git host",
    ]
    assert [s.name for s in blob_sources(settings, offline=True)] == ["cache", "registry"]
    far = replace(settings, registry="https://registry.example.org")
    assert [s.name for s in blob_sources(far, offline=True)] == ["cache"]


def test_the_cache_never_raises(tmp_path: Path, entry: Entry) -> None:
    cache = CacheSource(tmp_path / "no" / "such" / "folder")
    assert cache.get(entry, entry.files) == {}
    (tmp_path / "file").write_bytes(b"")
    blocked = CacheSource(tmp_path / "file")
    blocked.keep([b"x"])
    assert blocked.blob(sha256(b"x")) is None


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        env=environment,
        check=True,
        capture_output=True,
    )
    return done.stdout.decode().strip()


@pytest.fixture
def hosted(bench: Bench, tmp_path: Path) -> tuple[Bench, Path, Entry]:
    """Return a repository whose locked commit is not its tip, and the entry that locks it."""
    repository = tmp_path / "repository"
    folder = repository / "skills/demo"
    (folder / "docs").mkdir(parents=True)
    files = {"SKILL.md": skill_text("demo").replace(b"\n", b"\r\n"), "docs/ü.md": b"\xff\x00 raw"}
    git(tmp_path, "init", "-q", "-b", "main", "repository")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "locked")
    commit = git(repository, "rev-parse", "HEAD")
    (folder / "SKILL.md").write_bytes(b"newer")
    git(repository, "commit", "-q", "-a", "-m", "newer")
    bench.registry.add("demo", files)
    entry = bench.entry("acme/skills/demo")
    return bench, repository, replace(entry, commit=commit, label=f"git:20260101.{commit[:7]}")


def test_the_git_host_gives_the_locked_commit_s_bytes(hosted: tuple[Bench, Path, Entry]) -> None:
    bench, repository, entry = hosted
    host = GitHost(Settings(data=bench.data), lambda _: str(repository))
    fetcher = Fetcher((CacheSource(bench.data), host))
    assert fetcher.gather([entry]) == {}
    for file in entry.files:
        assert fetcher.read(file.sha256) == bench.registry.blobs[file.sha256]


def test_a_bundle_serves_as_host_and_needs_no_checkout(
    hosted: tuple[Bench, Path, Entry], tmp_path: Path
) -> None:
    bench, repository, entry = hosted
    git(repository, "bundle", "create", "-q", str(tmp_path / "all.bundle"), "HEAD")
    host = GitHost(Settings(data=bench.data), lambda _: str(tmp_path / "all.bundle"))
    assert Fetcher((host,)).gather([entry]) == {}


def test_a_rewritten_history_says_that_the_commit_is_gone(
    hosted: tuple[Bench, Path, Entry],
) -> None:
    bench, repository, entry = hosted
    gone = replace(entry, commit="0" * 40)
    with pytest.raises(MdrError) as caught:
        GitHost(Settings(data=bench.data), lambda _: str(repository)).get(gone, gone.files)
    assert caught.value.code == "commit-gone"
    assert caught.value.exit_code == 3


def test_an_artifact_without_host_says_so(bench: Bench, entry: Entry) -> None:
    with pytest.raises(MdrError) as caught:
        GitHost(Settings(data=bench.data)).get(replace(entry, host="local"), entry.files)
    assert caught.value.code == "no-host"


def test_addresses_are_https_on_the_locked_host(entry: Entry) -> None:
    assert address_of(entry) == "https://github.com/Acme/Skills"
    assert address_of(replace(entry, host="gitlab.com")) == "https://gitlab.com/Acme/Skills"
