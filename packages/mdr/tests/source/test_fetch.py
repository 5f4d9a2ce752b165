"""Fetching over HTTP from a real server on this machine: mirrors, force-pushes, limits, redirects."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from git_builder import GitRepository

from mdr.errors import Refusal, SourceError
from mdr.settings import Limits, Settings
from mdr.source import addresses, fetch
from mdr.source.fetch import mirror_folder
from mdr.source.locate import locate
from mdr.source.opening import current_head, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Handler(SimpleHTTPRequestHandler):
    """Serve files; below ``/moved/`` answer with a redirect to the rest of the path."""

    def do_GET(self) -> None:
        if self.path.startswith("/moved/"):
            self.send_response(301)
            self.send_header("Location", "/" + self.path.removeprefix("/moved/"))
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GitRepository, str]]:
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    repository = GitRepository(tmp_path / "www" / "owner" / "repo.git")
    repository.commit({"a.md": b"one"})
    publish(repository)
    handler = partial(_Handler, directory=str(tmp_path / "www"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield repository, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(repository: GitRepository) -> None:
    repository.git("repack", "-qad")
    repository.git("update-server-info")


def history(url: str, settings: Settings) -> list[str]:
    location = locate(url)
    with open_source(location, current_head(location, settings), settings) as source:
        return [commit.oid for commit, _ in source.history(source.head().commit)]


def test_fetch_and_fetch_again(served: tuple[GitRepository, str], tmp_path: Path) -> None:
    repository, base = served
    settings = Settings(data=tmp_path / "d", allow_private=True)
    first = history(f"{base}/owner/repo.git", settings)
    repository.commit({"a.md": b"two"})
    publish(repository)
    assert history(f"{base}/owner/repo.git", settings)[:1] == first
    assert len(history(f"{base}/owner/repo.git", settings)) == 2


def test_a_force_push_keeps_the_old_commits_in_the_mirror(
    served: tuple[GitRepository, str], tmp_path: Path
) -> None:
    repository, base = served
    settings = Settings(data=tmp_path / "d", allow_private=True)
    location = locate(f"{base}/owner/repo.git")
    (old,) = history(location.address, settings)
    new = repository.commit({"a.md": b"other"}, parents=[])
    publish(repository)
    assert history(location.address, settings) == [new]
    mirror = mirror_folder(location, settings.data)
    kept = GitRepository.__new__(GitRepository)
    kept.path = mirror
    assert kept.git("cat-file", "-t", old) == "commit"


def test_a_renamed_default_branch_is_followed(
    served: tuple[GitRepository, str], tmp_path: Path
) -> None:
    repository, base = served
    settings = Settings(data=tmp_path / "d", allow_private=True)
    history(f"{base}/owner/repo.git", settings)
    repository.git("branch", "-m", "main", "trunk")
    repository.git("symbolic-ref", "HEAD", "refs/heads/trunk")
    new = repository.commit({"b.md": b"b"}, branch="trunk")
    publish(repository)
    assert history(f"{base}/owner/repo.git", settings)[-1] == new


def test_a_loopback_address_is_refused_unless_allowed(
    served: tuple[GitRepository, str], tmp_path: Path
) -> None:
    _, base = served
    with pytest.raises(Refusal) as caught:
        history(f"{base}/owner/repo.git", Settings(data=tmp_path / "d"))
    assert caught.value.code == "private-address"


def test_a_redirect_is_not_followed(served: tuple[GitRepository, str], tmp_path: Path) -> None:
    _, base = served
    with pytest.raises(SourceError) as caught:
        history(f"{base}/moved/owner/repo.git", Settings(data=tmp_path / "d", allow_private=True))
    assert caught.value.code == "git-failed"


def test_more_objects_than_allowed(served: tuple[GitRepository, str], tmp_path: Path) -> None:
    _, base = served
    settings = Settings(data=tmp_path / "d", allow_private=True, limits=Limits(max_objects=1))
    with pytest.raises(SourceError) as caught:
        history(f"{base}/owner/repo.git", settings)
    assert caught.value.code == "source-too-large"


def test_a_pack_larger_than_allowed_is_stopped(
    served: tuple[GitRepository, str], tmp_path: Path
) -> None:
    import random

    repository, base = served
    repository.commit({"big.bin": random.Random(1).randbytes(300_000)})  # noqa: S311 - any bytes that do not compress
    publish(repository)
    settings = Settings(
        data=tmp_path / "d", allow_private=True, limits=Limits(max_pack_bytes=65_536)
    )
    with pytest.raises(SourceError) as caught:
        history(f"{base}/owner/repo.git", settings)
    assert caught.value.code in {"source-too-large", "git-failed"}


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "d", allow_private=True)
    settings = replace(settings, limits=Limits(fetch_timeout_seconds=20))
    with pytest.raises(SourceError) as caught:
        history("http://127.0.0.1:9/owner/repo", settings)
    assert caught.value.code == "git-failed"


def test_a_server_that_filters_keeps_its_large_files(tmp_path: Path) -> None:
    import random
    import socket
    import subprocess

    repository = GitRepository(tmp_path / "srv" / "owner" / "repo.git")
    repository.git("config", "uploadpack.allowFilter", "true")
    large = random.Random(2).randbytes(200_000)  # noqa: S311 - any bytes that do not compress
    repository.commit({"s/SKILL.md": b"small", "s/large.bin": large})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["git", "daemon", "--listen=127.0.0.1", f"--port={port}", "--export-all", "--verbose"]
    daemon = subprocess.Popen(
        [*words, f"--base-path={tmp_path / 'srv'}"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert daemon.stderr is not None
        assert b"Ready" in daemon.stderr.readline()
        settings = Settings(
            data=tmp_path / "d", allow_private=True, limits=Limits(max_file_bytes=100_000)
        )
        location = locate(f"git://127.0.0.1:{port}/owner/repo.git")
        head = current_head(location, settings)
        assert head.branch == "main"
        with open_source(location, head, settings) as source:
            ((_, changes),) = source.history(head.commit)
            sizes = source.sizes([change.oid for change in changes])
        assert {change.path: sizes[change.oid] for change in changes} == {
            "s/SKILL.md": 5,
            "s/large.bin": None,
        }
    finally:
        import os
        import signal

        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait()
        daemon.stderr.close()


def test_git_connects_to_the_checked_address_and_asks_no_name_server(
    served: tuple[GitRepository, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, base = served
    port = base.rpartition(":")[2]
    for name in ("https_proxy", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(addresses, "is_public", lambda _address: True)
    monkeypatch.setattr(addresses, "is_ours", lambda _address: False)
    monkeypatch.setattr(
        fetch, "check_public", partial(addresses.check_public, resolver=lambda *_: ["127.0.0.1"])
    )
    settings = Settings(data=tmp_path / "d")
    assert len(history(f"http://no-such-host.invalid:{port}/owner/repo.git", settings)) == 1
