"""GitHub's REST API, spoken with a real server on this machine."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from mdr.errors import SourceError
from mdr.source.github import Described, Limited, Missing, Unchanged, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = {
    "full_name": "NVIDIA/skills",
    "stargazers_count": 3415,
    "license": {"spdx_id": "Apache-2.0"},
    "pushed_at": "2026-09-23T00:00:00Z",
    "default_branch": "main",
}


@dataclass
class GitHub:
    """A server that gives the answers it was told, and keeps the requests."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def will(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.append((status, {k.replace("_", "-"): v for k, v in headers.items()}, data))


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    told = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            status, headers, body = told.answers.pop(0)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_github_says(github: GitHub) -> None:
    github.will(200, REPOSITORY, ETag='W/"abc"')
    assert describe("nvidia/skills", api=github.url, token="t0ken") == Described(
        repository="NVIDIA/skills",
        stars=3415,
        license="Apache-2.0",
        pushed="2026-09-23T00:00:00Z",
        branch="main",
        etag='W/"abc"',
    )
    path, headers = github.requests[0]
    assert path == "/repos/nvidia/skills"
    assert headers["authorization"] == "Bearer t0ken"


def test_the_second_request_is_conditional(github: GitHub) -> None:
    github.will(304)
    assert describe("a/b", api=github.url, etag='W/"abc"') == Unchanged()
    assert github.requests[0][1]["if-none-match"] == 'W/"abc"'


def test_no_license_is_not_known(github: GitHub) -> None:
    github.will(200, {**REPOSITORY, "license": None})
    github.will(200, {**REPOSITORY, "license": {"spdx_id": "NOASSERTION"}})
    for _ in range(2):
        answer = describe("a/b", api=github.url)
        assert isinstance(answer, Described)
        assert answer.license is None


def test_a_renamed_repository_is_followed_on_the_same_host(github: GitHub) -> None:
    github.will(301, Location=f"{github.url}/repositories/7")
    github.will(200, {**REPOSITORY, "full_name": "new/name"})
    answer = describe("old/name", api=github.url)
    assert isinstance(answer, Described)
    assert answer.repository == "new/name"


def test_another_host_gets_neither_request_nor_token(github: GitHub) -> None:
    github.will(302, Location="http://127.0.0.1:9/repos/a/b")
    with pytest.raises(SourceError) as caught:
        describe("a/b", api=github.url, token="t0ken")
    assert caught.value.code == "github-answer"


@pytest.mark.parametrize(
    ("status", "headers", "until"),
    [
        (403, {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "1234"}, 1234),
        (429, {"Retry_After": "30"}, 1030),
        (403, {"Retry_After": "5"}, 1005),
        (429, {}, 1060),
    ],
)
def test_rate_limits(github: GitHub, status: int, headers: dict[str, str], until: int) -> None:
    github.will(status, b"{}", **headers)
    assert describe("a/b", api=github.url, now=lambda: 1000.5) == Limited(until=until)


@pytest.mark.parametrize("status", [404, 410, 451])
def test_missing(github: GitHub, status: int) -> None:
    github.will(status, b"{}")
    assert describe("a/b", api=github.url) == Missing()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"full_name": 1}',
        b'{"full_name": "x"}',
        b"\xff",
        b"[" * 100_000,
        b"x" * (2 << 20),
    ],
)
def test_odd_answers_are_errors_in_words(github: GitHub, body: bytes) -> None:
    github.will(200, body)
    with pytest.raises(SourceError) as caught:
        describe("a/b", api=github.url)
    assert caught.value.code == "github-answer"


def test_hostile_fields_are_dropped(github: GitHub) -> None:
    github.will(
        200,
        {
            **REPOSITORY,
            "stargazers_count": -1,
            "default_branch": "a\x1b[2J",
            "pushed_at": "9" * 999,
        },
    )
    answer = describe("a/b", api=github.url)
    assert isinstance(answer, Described)
    assert (answer.stars, answer.branch, answer.pushed) == (None, None, None)
