"""A registry that lies, stalls, floods and redirects: a clear error, nothing believed, nothing written."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import client
from web_site import FIRST, SECOND, data_folder

from mdr.digest import sha256
from mdr.errors import BadReference, IntegrityError, MdrError, Refusal, UsageError, WorldError
from mdr.reference.parse import parse
from mdr.registry.remote import RemoteRegistry
from mdr.registry.searching import search_document
from mdr.registry.transport import Patience
from mdr.settings import Settings
from mdr.store.search import Query

REF = "acme/tools/greet"
NEW = sha256(SECOND)
Respond = Callable[[socket.socket, str], None]


@contextlib.contextmanager
def hostile(respond: Respond) -> Iterator[str]:
    """Serve one request per connection with whatever a test writes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    head = b""
                    while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
                        head += piece
                    respond(connection, head.split(b" ")[1].decode())

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def registry(url: str, **patience: Any) -> RemoteRegistry:
    chosen = Patience(**{"whole_seconds": 20.0, "tries": 1, "sleep": lambda _: None, **patience})
    return RemoteRegistry(Settings(data=Path("/nonexistent"), registry=url), chosen)


def always(data: bytes) -> Respond:
    return lambda connection, _: connection.sendall(data)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an honest registry answers."""
    with client(data_folder(tmp_path_factory.mktemp("honest"))) as api:
        found: dict[str, Any] = api.get("/api/v1/resolve", params={"ref": REF}).json()
        return found


def test_wrong_bytes_are_refused_whatever_the_etag_says() -> None:
    lie = reply(FIRST, f'etag: "{NEW}"', "content-type: text/plain")
    with hostile(always(lie)) as url, pytest.raises(IntegrityError) as caught:
        registry(url).blob(NEW)
    assert caught.value.code == "hash-mismatch"
    assert caught.value.data["actual"] == sha256(FIRST)


def test_an_endless_body_ends_at_the_limit() -> None:
    def flood(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with hostile(flood) as url:
        far = registry(url)
        far._settings = replace(
            far._settings, limits=replace(far._settings.limits, max_file_bytes=200_000)
        )
        with pytest.raises(IntegrityError) as caught:
            far.blob(NEW)
    assert "more than 200,000 bytes" in caught.value.message


def test_a_stated_length_beyond_the_limit_is_not_even_read() -> None:
    huge = b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n"
    with hostile(always(huge)) as url, pytest.raises(IntegrityError):
        registry(url).blob(NEW)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nx-a: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_drip_ends_at_the_deadline_in_head_and_body(start: bytes) -> None:
    stop = threading.Event()

    def drip(connection: socket.socket, _: str) -> None:
        connection.sendall(start)
        while not stop.wait(0.05):
            connection.sendall(b"a")

    with hostile(drip) as url:
        try:
            with pytest.raises((WorldError, IntegrityError)) as caught:
                registry(url, whole_seconds=0.6).blob(NEW)
        finally:
            stop.set()
    assert caught.value.code == "registry-unreachable"


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://x/y",
        "gopher://x",
        "//",
        "http://user:pw@127.0.0.1/",
        "",
        "javascript:1",
    ],
)
def test_redirects_to_other_schemes_are_not_followed(target: str) -> None:
    answer = reply(b"", f"location: {target}", status="302 Found")
    with hostile(always(answer)) as url, pytest.raises(MdrError) as caught:
        registry(url).blob(NEW)
    assert caught.value.code == "registry-answer"


def test_redirects_end() -> None:
    answer = reply(b"", "location: /again", status="302 Found")
    with hostile(always(answer)) as url, pytest.raises(IntegrityError) as caught:
        registry(url).blob(NEW)
    assert "too often" in caught.value.message


def test_https_never_becomes_http() -> None:
    from mdr.registry.transport import _target

    with pytest.raises(IntegrityError):
        _target("https://a.example/x", "http://a.example/x")
    assert _target("http://a.example/x", "https://b.example/y") == "https://b.example/y"


def test_an_encoded_answer_is_refused_so_no_bomb_goes_off() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    with (
        hostile(always(reply(bomb, "content-encoding: gzip"))) as url,
        pytest.raises(IntegrityError),
    ):
        registry(url).blob(NEW)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"artifact": 1}',
        b"\xff\xfe",
        b'{"artifact": {}}',
    ],
)
def test_nonsense_is_refused(body: bytes) -> None:
    with hostile(always(reply(body))) as url, pytest.raises(IntegrityError) as caught:
        registry(url).resolve(parse(REF))
    assert caught.value.code == "registry-answer"


def change(document: dict[str, Any], path: str, value: Any) -> bytes:
    copy = json.loads(json.dumps(document))
    here = copy
    *way, last = path.split(".")
    for step in way:
        here = here[int(step)] if step.isdecimal() else here[step]
    here[int(last) if last.isdecimal() else last] = value
    return json.dumps(copy).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("artifact.id", "art_aaaaaaaaaaaaaaaa"),
        ("artifact.repository", "Evil/Tools"),
        ("artifact.path", "../../etc/passwd"),
        ("artifact.kind", "virus"),
        ("artifact.name", "\ud800"),
        ("version.sha256", "0" * 64),
        ("version.sha256", "x"),
        ("version.size", -1),
        ("version.size", True),
        ("version.size", 1e9),
        ("version.label", "latest"),
        ("version.commit", "zz"),
        ("version.grade", "A+"),
        ("version.committed", "yesterday"),
        ("version.manifest_sha256", "0" * 64),
        ("version.yanked", "yes"),
        ("files.0.path", "../evil"),
        ("files.0.path", "/etc/passwd"),
        ("files.0.mode", "100777"),
        ("files.0.size", 10**30),
        ("files", []),
        ("files", "x"),
    ],
)
def test_every_lie_in_a_document_is_noticed(honest: dict[str, Any], path: str, value: Any) -> None:
    body = change(honest, path, value)
    with hostile(always(reply(body))) as url, pytest.raises(IntegrityError) as caught:
        registry(url).resolve(parse(REF))
    assert caught.value.code == "registry-answer"


FOUND = {
    "schema": "mdr.search/1",
    "query": "",
    "total": 0,
    "items": [],
    "facets": {},
    "next_cursor": None,
}


def test_a_facet_that_is_left_out_counts_nothing() -> None:
    with hostile(always(reply(json.dumps(FOUND).encode()))) as url:
        page = registry(url).search(Query())
    assert search_document("", page)["facets"]["kind"] == {}


@pytest.mark.parametrize("total", [-5, True, "1", None, 1.0])
def test_a_total_that_counts_nothing_is_noticed(total: object) -> None:
    body = json.dumps(FOUND | {"total": total}).encode()
    with hostile(always(reply(body))) as url, pytest.raises(IntegrityError) as caught:
        registry(url).search(Query())
    assert caught.value.code == "registry-answer"


def test_the_honest_document_is_taken(honest: dict[str, Any]) -> None:
    with hostile(always(reply(json.dumps(honest).encode()))) as url:
        resolved = registry(url).resolve(parse(REF))
    assert resolved.version.sha256 == NEW


@pytest.mark.parametrize(
    ("status", "code", "kind", "shown"),
    [
        ("404 Not Found", "not-found", BadReference, "not-found"),
        ("404 Not Found", "\x1b[31m", BadReference, "not-found"),
        ("409 Conflict", "ambiguous-reference", BadReference, "ambiguous-reference"),
        ("451 Unavailable", "tombstone", Refusal, "tombstone"),
        ("401 Unauthorized", "token-unknown", Refusal, "token-unknown"),
        ("403 Forbidden", "lock-collision", Refusal, "registry-refused"),
        ("422 Unprocessable", "bad-cursor", UsageError, "bad-cursor"),
        ("500 Oops", "x", WorldError, "registry-unreachable"),
        ("429 Slow Down", "rate-limited", WorldError, "registry-unreachable"),
    ],
)
def test_problems_become_our_own_errors_with_harmless_words(
    status: str, code: str, kind: type[MdrError], shown: str
) -> None:
    body = json.dumps(
        {"code": code, "detail": "\x1b[2Jgone\n" + "x" * 9_000, "reason": "r\x07"}
    ).encode()
    with hostile(always(reply(body, status=status))) as url, pytest.raises(kind) as caught:
        registry(url).resolve(parse(REF))
    assert caught.value.code == shown
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 600


def test_a_busy_registry_is_asked_again_as_it_says() -> None:
    asked, slept = [], []

    def busy(connection: socket.socket, target: str) -> None:
        asked.append(target)
        if len(asked) < 3:
            connection.sendall(reply(b"", "retry-after: 2", status="503 Busy"))
        else:
            connection.sendall(reply(SECOND))

    with hostile(busy) as url:
        assert registry(url, tries=3, sleep=slept.append).blob(NEW) == SECOND
    assert (len(asked), slept) == (3, [2.0, 4.0])


def test_a_pause_of_a_day_is_not_waited_for() -> None:
    slept: list[float] = []
    answer = reply(b"", "retry-after: 86400", status="429 Slow Down")
    with hostile(always(answer)) as url, pytest.raises(WorldError):
        registry(url, tries=3, sleep=slept.append).blob(NEW)
    assert slept == []


def test_a_list_of_versions_that_never_ends_is_left(honest: dict[str, Any]) -> None:
    old = json.loads(change(honest, "version.latest", value=False))

    def endless(connection: socket.socket, target: str) -> None:
        if "/versions" in target:
            page = {"items": [honest["version"]], "next_cursor": "again"}
            connection.sendall(reply(json.dumps(page).encode()))
        else:
            connection.sendall(reply(json.dumps(old).encode()))

    with hostile(endless) as url, pytest.raises(IntegrityError) as caught:
        registry(url).resolve(parse(REF))
    assert "does not end" in caught.value.message


def test_content_that_is_not_what_was_claimed_is_not_matched(honest: dict[str, Any]) -> None:
    def lying(connection: socket.socket, target: str) -> None:
        if target.endswith("/verify"):
            item = {"sha256": sha256(FIRST), "refs": [f"{REF}@{honest['version']['label']}"]}
            connection.sendall(reply(json.dumps({"items": [item]}).encode()))
        else:
            connection.sendall(reply(json.dumps(honest).encode()))

    with hostile(lying) as url:
        assert registry(url).find_by_content([sha256(FIRST)]) == {}
