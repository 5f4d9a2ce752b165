"""What is kept of GitHub's answers, and that a silent GitHub stops nothing."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from git_builder import skill

from mdr.reference.parse import parse
from mdr.registry import indexing
from mdr.registry.github_words import ask
from mdr.registry.local import LocalRegistry
from mdr.source.locate import locate
from mdr.store.quick import known_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from git_builder import GitRepository

    from mdr.settings import Settings

BODY = {
    "full_name": "Acme/Tools",
    "stargazers_count": 7,
    "license": {"spdx_id": "MIT"},
    "pushed_at": "2026-01-02T00:00:00Z",
    "default_branch": "main",
}


@dataclass
class _Api:
    """Answers with ``status`` and ``body``; 304 to a request that has the right ETag."""

    status: int = 200
    body: bytes = json.dumps(BODY).encode()
    headers: dict[str, str] = field(default_factory=dict)
    asked: int = 0


@pytest.fixture
def api(settings: Settings) -> Iterator[tuple[_Api, Settings]]:
    told = _Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked += 1
            same = self.headers.get("If-None-Match") == '"v1"'
            body = b"" if same else told.body
            self.send_response(304 if same else told.status)
            for key, value in {
                "ETag": '"v1"',
                "Content-Length": str(len(body)),
                **told.headers,
            }.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield told, replace(settings, github_api=f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def index(
    repository: GitRepository,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    source: str = "github:acme/tools",
) -> indexing.Indexed:
    """Index ``github:acme/tools`` with the git part redirected to a repository on this machine."""
    disk = locate(str(repository.path))
    monkeypatch.setattr(indexing, "current_head", lambda _location, settings: _head(disk, settings))
    real = indexing._index_changed

    def changed(location: Any, head: Any, settings: Settings, progress: Any) -> int:
        here = replace(disk, host=location.host, repository=location.repository)
        return real(here, head, settings, progress)

    monkeypatch.setattr(indexing, "_index_changed", changed)
    return indexing.index_source(source, settings)


def _head(disk: Any, settings: Settings) -> Any:
    from mdr.source.opening import current_head

    return current_head(disk, settings)


def test_stars_license_and_spelling_are_kept(
    repository: GitRepository, api: tuple[_Api, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, settings = api
    repository.commit({"s/SKILL.md": skill("s")})
    done = index(repository, settings, monkeypatch)
    assert done.repository == "Acme/Tools"
    source = LocalRegistry(settings).resolve(parse("acme/tools/s")).source
    assert (source.stars, source.license, source.pushed, source.branch) == (
        7,
        "MIT",
        "2026-01-02T00:00:00Z",
        "main",
    )
    told.body = b"would be odd"
    monkeypatch.undo()
    again = index(repository, settings, monkeypatch)
    assert (again.new_versions, again.notes, told.asked) == (0, (), 2)
    assert LocalRegistry(settings).resolve(parse("acme/tools/s")).source == source


def test_a_renamed_repository_goes_under_its_new_name(
    repository: GitRepository, api: tuple[_Api, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = api
    repository.commit({"s/SKILL.md": skill("s")})
    done = index(repository, settings, monkeypatch, "github:old/name")
    assert done.repository == "Acme/Tools"
    assert done.notes == ("old/name is now Acme/Tools",)


@pytest.mark.parametrize(("status", "body"), [(500, b"{}"), (404, b"{}"), (200, b"nonsense")])
def test_without_an_answer_indexing_goes_on(
    repository: GitRepository,
    api: tuple[_Api, Settings],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
) -> None:
    told, settings = api
    told.status, told.body = status, body
    repository.commit({"s/SKILL.md": skill("s")})
    done = index(repository, settings, monkeypatch)
    assert (done.versions, len(done.notes)) == (1, 1)
    assert LocalRegistry(settings).resolve(parse("acme/tools/s")).source.stars is None


def test_a_rate_limit_is_honoured_until_it_is_over(
    repository: GitRepository, api: tuple[_Api, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, settings = api
    told.status, told.headers = 429, {"Retry-After": "3600"}
    repository.commit({"s/SKILL.md": skill("s")})
    index(repository, settings, monkeypatch)
    known = known_source(settings.data, "github.com", "acme/tools", "r1")
    assert known is not None
    location, words, notes = ask(locate("github:acme/tools"), known.source, settings, named=False)
    assert (told.asked, words) == (1, None)
    assert "rate limit" in notes[0]
    over = replace(known.source, retry_after=1)
    told.status, told.headers = 200, {}
    _, words, _ = ask(location, over, settings, named=False)
    assert words is not None
    assert (words.stars, words.retry_after) == (7, None)
