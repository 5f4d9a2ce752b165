"""A source from outside reaches no server inside: every way a repository can lead elsewhere, with real servers.

Two web servers run on this machine. ``outside`` stands for the internet: the one address that counts as
public here. ``inside`` stands for a metadata service, and must never hear a request.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from git_builder import GitRepository, submodule

from mdr.errors import Refusal, SourceError, UsageError
from mdr.settings import Settings
from mdr.source import addresses, fetch
from mdr.source.locate import locate
from mdr.source.opening import current_head, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTSIDE, INSIDE = "127.0.0.1", "127.0.0.2"
NAME = "no-such-host.invalid"


@dataclass
class Server:
    """A web server of files that remembers what it was asked, and may redirect or refuse."""

    root: Path
    address: str
    asked: list[str] = field(default_factory=list)
    redirect_to: str | None = None
    refusal: tuple[int, dict[str, str]] | None = None
    port: int = 0

    def start(self) -> ThreadingHTTPServer:
        """Serve until it is shut down."""
        owner = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                if owner.refusal is not None or owner.redirect_to is not None:
                    status, fields = owner.refusal or (302, {})
                    self.send_response(status)
                    if owner.redirect_to is not None:
                        fields = {"Location": owner.redirect_to + self.path}
                    for name, value in fields.items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                super().do_GET()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer((self.address, 0), partial(Handler, directory=str(self.root)))
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Server]:
    yield from _running(Server(root=tmp_path / "outside", address=OUTSIDE))


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Server]:
    yield from _running(Server(root=tmp_path / "inside", address=INSIDE))


def _running(server: Server) -> Iterator[Server]:
    server.root.mkdir()
    running = server.start()
    yield server
    running.shutdown()
    running.server_close()


@pytest.fixture(autouse=True)
def one_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count one loopback address as the internet, so that a real server can stand there."""
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(addresses, "is_public", lambda address: address == OUTSIDE)
    monkeypatch.setattr(addresses, "is_ours", lambda _address: False)


@pytest.fixture
def resolves(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Answers of the name service, first to last; the last stays."""
    answers: list[list[str]] = [[OUTSIDE]]

    def resolver(_host: str, _port: int) -> list[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(fetch, "check_public", partial(addresses.check_public, resolver=resolver))
    return answers


def repository(server: Server, **files: bytes) -> GitRepository:
    made = GitRepository(server.root / "owner" / "repo.git")
    made.commit({"SKILL.md": b"text", **files})
    publish(made)
    return made


def publish(made: GitRepository) -> None:
    made.git("repack", "-qad")
    made.git("update-server-info")


def read(url: str, tmp_path: Path) -> list[str]:
    settings = Settings(data=tmp_path / "data")
    location = locate(url)
    with open_source(location, current_head(location, settings), settings) as source:
        return [commit.oid for commit, _ in source.history(source.head().commit)]


def url_of(server: Server) -> str:
    return f"http://{NAME}:{server.port}/owner/repo.git"


def test_the_stage_itself_works(outside: Server, resolves: list[list[str]], tmp_path: Path) -> None:
    repository(outside)
    assert len(read(url_of(outside), tmp_path)) == 1
    assert outside.asked


def test_a_name_that_turns_inside_after_the_check_is_refused_at_the_next_call(
    outside: Server, inside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    repository(outside)
    resolves[:] = [[OUTSIDE], [INSIDE]]
    with pytest.raises(Refusal) as caught:
        read(url_of(outside), tmp_path)
    assert caught.value.data["addresses"] == [INSIDE]
    assert inside.asked == []


def test_git_does_not_ask_again_what_the_check_was_told(
    outside: Server, inside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    """``localhost`` would lead elsewhere by the system's own answer; the pin is what counts."""
    made = repository(outside)
    settings = Settings(data=tmp_path / "data")
    location = locate(f"http://localhost:{outside.port}/owner/repo.git")
    before = len(outside.asked)
    assert current_head(location, settings).commit == made.git("rev-parse", "HEAD")
    assert len(outside.asked) > before
    resolves[:] = [[INSIDE]]
    with pytest.raises(Refusal):
        current_head(location, settings)
    assert inside.asked == []


def test_one_answer_with_a_public_and_an_inner_address(
    outside: Server, inside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    repository(outside)
    resolves[:] = [[OUTSIDE, INSIDE]]
    with pytest.raises(Refusal):
        read(url_of(outside), tmp_path)
    assert (outside.asked, inside.asked) == ([], [])


def test_a_redirect_leads_nowhere(
    outside: Server, inside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    outside.redirect_to = f"http://{INSIDE}:{inside.port}"
    with pytest.raises(SourceError) as caught:
        read(url_of(outside), tmp_path)
    assert caught.value.code == "git-failed"
    assert outside.asked
    assert inside.asked == []


@pytest.mark.parametrize("file", ["http-alternates", "alternates"])
def test_alternates_over_http_lead_nowhere(
    file: str, outside: Server, inside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    made = GitRepository(outside.root / "owner" / "repo.git")
    made.commit({"SKILL.md": b"text"})
    made.git("update-server-info")
    lost = made.git("rev-parse", "HEAD:SKILL.md")
    (made.path / "objects" / lost[:2] / lost[2:]).unlink()  # so that git looks for alternates
    (made.path / "objects/info" / file).write_text(
        f"http://{INSIDE}:{inside.port}/owner/repo.git/objects\n"
    )
    with pytest.raises(SourceError):
        read(url_of(outside), tmp_path)
    assert any(lost[2:] in path for path in outside.asked)
    assert inside.asked == []


def test_a_submodule_is_not_visited(
    outside: Server, inside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    made = GitRepository(outside.root / "owner" / "repo.git")
    address = f"http://{INSIDE}:{inside.port}/x.git"
    words = f'[submodule "x"]\n\tpath = x\n\turl = {address}\n'
    made.commit({"SKILL.md": b"text", ".gitmodules": words.encode(), "x": submodule("1" * 40)})
    publish(made)
    assert len(read(url_of(outside), tmp_path)) == 1
    assert inside.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c 'touch /tmp/owned'",
        "http::http://127.0.0.2/a/b",
        "ftp://127.0.0.2/a/b",
        "gopher://127.0.0.2/a/b",
        "http://user:secret@127.0.0.2/a/b",
        "http://127.0.0.2#@example.org/a/b",
        "http://example.org\\@127.0.0.2/a/b",
        "http://127.0.0.2\t/a/b",
        "http://example.org%00.127.0.0.2/a/b",
        "dict://127.0.0.2:11211/a/b",
        "--upload-pack=touch /tmp/owned",
    ],
)
def test_urls_that_mean_something_else(url: str) -> None:
    with pytest.raises(UsageError):
        locate(url)


@pytest.mark.parametrize(
    ("status", "fields", "pause"),
    [
        (429, {"Retry-After": "120"}, 120),
        (429, {}, 60),
        (503, {"Retry-After": "30"}, 30),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 1),
        (429, {"Retry-After": "99999999999"}, 86_400),
    ],
)
def test_a_server_that_asks_for_patience_is_heard(
    *,
    status: int,
    fields: dict[str, str],
    pause: int,
    outside: Server,
    resolves: list[list[str]],
    tmp_path: Path,
) -> None:
    outside.refusal = (status, fields)
    with pytest.raises(SourceError) as caught:
        read(url_of(outside), tmp_path)
    assert (caught.value.code, caught.value.data["retry_after"]) == ("host-rate-limited", pause)
    assert list((tmp_path / "data/tmp").iterdir()) == []


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_a_refusal_without_a_time_is_a_failure(
    status: int, outside: Server, resolves: list[list[str]], tmp_path: Path
) -> None:
    outside.refusal = (status, {})
    with pytest.raises(SourceError) as caught:
        read(url_of(outside), tmp_path)
    assert caught.value.code == "git-failed"
