"""``mdr serve`` as a process: its address, its end, its limits on the wire, its log."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from served import Running, running
from web_site import GREET, SECOND

from mdr.digest import sha256
from mdr.errors import StoreError
from mdr.serving.deaths import FIRST_WAIT, LONGEST_WAIT, MOST, WINDOW, Deaths
from mdr.serving.options import Options
from mdr.serving.process import _Several
from mdr.settings import Settings

BLOB = f"/api/v1/blob/{sha256(SECOND)}"


@pytest.fixture
def server(settings: Settings, tmp_path: Path) -> Iterator[Running]:
    with running(settings.data, folder=tmp_path) as found:
        yield found


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - loopback
        data: bytes = answer.read()
        return data


def raw(server: Running, sent: bytes, *, close: bool = False) -> bytes:
    """Send bytes and read until the other side closes."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(sent)
        if close:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_its_address_and_ends_with_0(server: Running, number: int) -> None:
    assert get(server.url + BLOB) == SECOND
    assert server.stop(number) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("path", [BLOB, f"/a/{GREET}", "/nope", "/api/v1/nope"])
def test_a_head_leaves_the_connection_usable_and_the_log_quiet(server: Running, path: str) -> None:
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    lengths = []
    for method in ("HEAD", "HEAD", "GET"):
        connection.request(method, path)
        answer = connection.getresponse()
        assert "close" not in (answer.getheader("connection") or "")
        lengths.append((answer.getheader("content-length"), len(answer.read())))
    (told, _), _, (_, size) = lengths
    assert lengths == [(told, 0), (told, 0), (told, size)]
    assert told == str(size)
    connection.request("POST", path)
    refused = connection.getresponse()
    assert refused.read()
    assert refused.status in {404, 405}
    connection.close()
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("host", [b"[", b"evil.example/x?", b"a b", b""])
@pytest.mark.parametrize("allowed", [(), ("--allow-host", "*")])
def test_the_host_that_a_request_names_leads_nobody_anywhere(
    settings: Settings, tmp_path: Path, host: bytes, allowed: tuple[str, ...]
) -> None:
    with running(settings.data, *allowed, folder=tmp_path) as server:
        for path in (
            f"/a/{GREET}/",
            "/nope",
            "/mcp/",
            "/search/",
            "/a/\\evil.example/",
            "//evil.example/",
        ):
            sent = b"GET %s HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % (
                path.encode(),
                host,
            )
            head = raw(server, sent).partition(b"\r\n\r\n")[0].lower()
            assert b"evil.example/x" not in head
            assert b"location: http" not in head
            assert b"location: //" not in head
            assert b"location: /\\" not in head
            assert int(head.split()[1]) < 500
            assert (int(head.split()[1]) == 421) == (not allowed and host != b"")
        server.stop()
        assert "Traceback" not in server.log.read_text()


REBOUND = [
    b"GET / HTTP/1.1\r\nhost: evil.example:%d\r\nconnection: close\r\n\r\n",
    b"GET /api/v1/artifacts HTTP/1.1\r\nhost: evil.example:%d\r\nconnection: close\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nhost: evil.example:%d\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
]


@pytest.mark.parametrize("sent", REBOUND)
def test_a_page_whose_name_leads_to_this_machine_reads_nothing(
    server: Running, sent: bytes
) -> None:
    port = urlsplit(server.url).port or 0
    head, _, body = raw(server, sent % port).partition(b"\r\n\r\n")
    assert head.split()[1] == b"421"
    assert b"host-not-served" in body
    assert b"--allow-host" in body
    assert sha256(SECOND).encode() not in body


@pytest.mark.parametrize(
    "host", ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST", "[::1]:80", "127.0.0.1"]
)
def test_a_server_answers_to_its_own_names(server: Running, host: str) -> None:
    port = server.url.rpartition(":")[2]
    sent = (
        f"GET /healthz HTTP/1.1\r\nhost: {host.replace('PORT', port)}\r\nconnection: close\r\n\r\n"
    )
    assert raw(server, sent.encode()).startswith(b"HTTP/1.1 200")


def test_a_probe_that_names_no_host_is_answered(server: Running) -> None:
    assert raw(server, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_badge_views_survive_the_end(server: Running, settings: Settings, tmp_path: Path) -> None:
    get(f"{server.url}/badge/{GREET}.svg")
    assert server.stop() == 0
    with running(settings.data, folder=tmp_path) as again:
        shown = json.loads(get(f"{again.url}/api/v1/artifacts/{GREET}"))
    assert shown["artifact"]["badge_views_30d"] >= 1


def test_a_request_that_runs_is_finished_before_the_end(server: Running) -> None:
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        body = json.dumps({"hashes": [sha256(SECOND)]}).encode()
        head = f"POST /api/v1/verify HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:10])
        assert get(f"{server.url}/healthz")  # the head of the other request was read before this
        server.process.send_signal(signal.SIGTERM)
        connection.sendall(body[10:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert server.process.wait(60) == 0


def test_several_processes_share_the_port_and_a_dead_one_is_replaced(
    settings: Settings, tmp_path: Path
) -> None:
    with running(settings.data, "--workers", "2", folder=tmp_path) as server:
        assert get(server.url + BLOB) == SECOND
        children = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(server.process.pid)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        workers = [int(line.split()[0]) for line in children if "spawn_main" in line]
        assert len(workers) == 2
        subprocess.run(["kill", "-9", str(workers[0])], check=True)
        for _ in range(20):
            assert get(server.url + BLOB) == SECOND
        text = get(f"{server.url}/metrics").decode()
        assert "mdr_http_requests_total" in text
        assert server.stop() == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_deaths_are_a_rate_and_each_makes_the_next_start_later() -> None:
    clock = Clock()
    deaths = Deaths(2, clock)
    moments = [deaths.another() for _ in range(MOST)]
    assert moments == sorted(moments, key=float)  # type: ignore[arg-type]  # none of them is None
    assert (moments[0], moments[-1]) == (FIRST_WAIT, LONGEST_WAIT)
    assert deaths.another() is None
    clock.now = WINDOW
    assert len(deaths) == 0
    for _ in range(100):  # one now and then, for ever
        assert deaths.another() == clock.now + FIRST_WAIT
        clock.now += WINDOW
    many = Deaths(50, clock)
    assert None not in [many.another() for _ in range(100)]
    assert many.another() is None


class Dying:
    """A worker's process that is dead as soon as it started."""

    exitcode = -9
    sentinel = -1

    def is_alive(self) -> bool:
        return False


class Pipe:
    def close(self) -> None:
        pass


def test_processes_that_die_at_once_end_the_service_and_say_why(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()

    def wait(_: object, timeout: float) -> None:
        clock.now += timeout

    monkeypatch.setattr("multiprocessing.connection.wait", wait)
    monkeypatch.setattr("mdr.serving.process.time.monotonic", clock)
    sock = socket.socket()
    sock.close()
    several = _Several(sock, settings, Options(workers=2), "http://127.0.0.1:1")
    several._deaths = Deaths(2, clock)
    begun = []

    def begin() -> None:
        begun.append(clock.now)
        several._workers[Dying()] = Pipe()  # type: ignore[index,assignment]
        if len(begun) > 5:
            raise StoreError("database-unreachable", "no answer")

    monkeypatch.setattr(several, "_begin", begin)
    begin()
    with pytest.raises(StoreError):
        several._watch()
    assert len(begun) == MOST + 1
    gaps = [after - before for before, after in pairwise(begun)]
    assert gaps[-1] > 10 * gaps[0]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["again"] for line in lines] == [True] * MOST + [False]
    assert {line["exit"] for line in lines} == {-9}


def test_a_taken_port_is_exit_3_with_a_hint(server: Running, settings: Settings) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "mdr", "serve", "--port", port, "--data", str(settings.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "[port-taken]" in done.stderr
    assert "--port 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--host", "no.such.host.invalid"), 2),
        (("--trust-proxy", "nonsense"), 2),
        (("--allow-host", "https://registry.example"), 2),
        (("--allow-host", ""), 2),
        (("--public-url", "ftp://x"), 2),
        (("--registry", "https://elsewhere.example"), 2),
        (("--database", "mysql://x"), 2),
    ],
)
def test_nonsense_is_refused_before_anything_is_served(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    command = [
        sys.executable,
        "-m",
        "mdr",
        "serve",
        "--port",
        "0",
        "--data",
        str(tmp_path / "d"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n", b"400"),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n", b"400"),
    ],
)
def test_what_is_not_http_is_refused_and_closed(
    server: Running, sent: bytes, status: bytes
) -> None:
    head, _, body = raw(server, sent).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert b"application/problem+json" in head
    problem = json.loads(body)
    assert set(problem) == {"type", "title", "status", "detail", "code", "hint"}
    assert all(problem.values())
    assert problem["status"] == int(status)
    assert get(f"{server.url}/healthz")


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    one = f"GET {BLOB} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    last = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    found = raw(server, one + one + last)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.endswith(b'"status":"ok"}')


def test_the_log_is_json_and_knows_nobody(server: Running) -> None:
    get(f"{server.url}/api/v1/artifacts?q=verysecretwords")
    server.stop()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (line,) = [each for each in lines if each.get("route") == "/api/v1/artifacts"]
    assert (line["event"], line["method"], line["status"]) == ("request", "GET", 200)
    assert "verysecretwords" not in server.log.read_text()
    assert "127.0.0.1" not in server.log.read_text()
