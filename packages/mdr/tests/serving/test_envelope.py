"""What every answer carries, and what is refused before a route is asked."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network

import pytest
from served import client
from starlette.testclient import TestClient
from web_site import GREET

from mdr.serving.clients import MAX_CLIENTS, Clients
from mdr.serving.options import networks
from mdr.settings import Settings

PATHS = ["/", f"/a/{GREET}", f"/api/v1/artifacts/{GREET}", "/nope", "/api/v1/nope", "/healthz"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_guarded(api: TestClient, path: str) -> None:
    headers = api.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(headers["x-request-id"]) == 16
    assert "strict-transport-security" not in headers
    assert "server" not in headers


def test_a_given_request_id_is_kept_and_a_hostile_one_is_not(api: TestClient) -> None:
    assert (
        api.get("/healthz", headers={"x-request-id": "abc-123-def"}).headers["x-request-id"]
        == "abc-123-def"
    )
    for bad in ("x", "a b c d e f g", "x" * 65, '"><script>'):
        assert api.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_https_is_told_to_stay_when_a_trusted_proxy_says_so(settings: Settings) -> None:
    forwarded = {"x-forwarded-proto": "https"}
    with client(settings) as plain:
        assert "strict-transport-security" not in plain.get("/healthz", headers=forwarded).headers
    from mdr.answers.answer import Scope

    trusting = Clients(0, networks(("10.0.0.0/8",)))
    scope: Scope = {
        "client": ("10.1.2.3", 1),
        "headers": [(b"x-forwarded-proto", b"https")],
        "scheme": "http",
    }
    trusting.identify(scope)
    assert scope["scheme"] == "https"


def test_pages_of_any_origin_may_read_and_none_may_write(api: TestClient) -> None:
    origin = {"origin": "https://elsewhere.example"}
    assert (
        api.get(f"/api/v1/artifacts/{GREET}", headers=origin).headers["access-control-allow-origin"]
        == "*"
    )
    asked = api.options(
        "/api/v1/verify", headers={**origin, "access-control-request-method": "POST"}
    )
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == "*"
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert "authorization" not in asked.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in asked.headers
    assert "access-control-allow-origin" not in api.get("/", headers=origin).headers


YANK = f"/api/v1/artifacts/{GREET}/versions/git:20260101.0000000/yank"
TOMBSTONE = f"/api/v1/tombstones/{'0' * 64}"
WRITES = [
    ("PUT", YANK), ("DELETE", YANK), ("PUT", TOMBSTONE), ("DELETE", TOMBSTONE),
    ("POST", "/api/v1/sources"), ("POST", "/api/v1/disputes"), ("POST", "/api/v1/claims"),
    ("GET", "/api/v1/events"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_no_page_of_another_origin_hears_of_a_write(
    api: TestClient, method: str, path: str
) -> None:
    origin = {"origin": "https://elsewhere.example"}
    answers = [
        api.request(
            method, path, headers=origin, json={"reason": "x"} if method == "PUT" else None
        ),
        api.options(path, headers={**origin, "access-control-request-method": method}),
    ]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control-")]


ALLOWED = {
    "/": "GET, HEAD, OPTIONS",
    f"/a/{GREET}": "GET, HEAD, OPTIONS",
    f"/badge/{GREET}.svg": "GET, HEAD, OPTIONS",
    f"/api/v1/badge/{GREET}.svg": "GET, HEAD, OPTIONS",
    "/api/v1/artifacts": "GET, HEAD, OPTIONS",
    "/api/v1/healthz": "GET, HEAD, OPTIONS",
    "/openapi.json": "GET, HEAD, OPTIONS",
    "/api/v1/verify": "POST, OPTIONS",
    "/api/v1/sources": "POST, OPTIONS",
    YANK: "PUT, DELETE, OPTIONS",
    TOMBSTONE: "PUT, DELETE, OPTIONS",
    "/mcp": "POST, OPTIONS",
    "/mcp/": "POST, OPTIONS",
}


@pytest.mark.parametrize("path", sorted(ALLOWED))
def test_a_path_tells_its_own_methods_and_refuses_the_others(api: TestClient, path: str) -> None:
    allowed = ALLOWED[path]
    asked = api.options(path)
    assert (asked.status_code, asked.headers["allow"]) == (204, allowed)
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE"):
        if method in allowed.split(", "):
            continue
        refused = api.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed), method
        if method == "HEAD":
            assert refused.content == b""
        elif path.startswith(("/api/", "/mcp", "/badge/", "/openapi.json")) and "badge" not in path:
            assert refused.json()["code"] == "method-not-allowed"


@pytest.mark.parametrize("path", ["/nope", "/api/v1/nope", "/api/v1/nope/yank", "/mcp/nope"])
def test_a_path_that_is_not_there_has_no_methods(api: TestClient, path: str) -> None:
    assert api.options(path).status_code == 404
    assert api.put(path).status_code == 404


def test_the_whole_server_can_be_asked_for_its_methods(api: TestClient) -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    asked = {"type": "http", "method": "OPTIONS", "path": "*", "raw_path": b"*", "query_string": b"",
             "headers": [(b"host", b"registry.example")], "client": ("127.0.0.1", 1)}  # fmt: skip
    asyncio.run(api.app(asked, receive, send))  # type: ignore[arg-type]
    headers = dict(sent[0]["headers"])  # type: ignore[call-overload]
    assert sent[0]["status"] == 204
    assert {b"GET", b"PUT", b"DELETE"} <= set(headers[b"allow"].split(b", "))


def test_too_long_an_address_and_too_large_a_body_are_problems(api: TestClient) -> None:
    answer = api.get("/api/v1/artifacts?q=" + "x" * 9_000)
    assert (answer.status_code, answer.json()["code"]) == (414, "uri-too-long")
    answer = api.post("/api/v1/verify", content=b"x" * 300_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")

    def chunks() -> object:
        yield from [b"x" * 100_000] * 4

    answer = api.post("/api/v1/verify", content=chunks())  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


@pytest.mark.parametrize(
    "path", ["/openapi.json", "/healthz", "/readyz", "/metrics", f"/badge/{GREET}.svg"]
)
def test_what_answers_at_the_root_answers_below_the_base_too(api: TestClient, path: str) -> None:
    root, below = api.get(path), api.get(f"/api/v1{path}")
    assert below.status_code == root.status_code == 200
    assert below.headers["content-type"] == root.headers["content-type"]
    if path != "/metrics":
        assert below.content == root.content


@pytest.mark.parametrize(
    "path", ["/nope", "/badge/art_aaaaaaaaaaaaaaaa.svg", "/mcp/nope", "/api/v1/badge/x"]
)
def test_a_condition_never_hides_an_error(api: TestClient, path: str) -> None:
    etag = api.get(path).headers.get("etag", '"x"')
    for sent in ("*", etag):
        assert api.get(path, headers={"if-none-match": sent}).status_code == 404


def test_a_fault_of_ours_is_a_problem_that_tells_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr("mdr.registry.reading.Reading.found", broken)
    with client(settings) as found:
        answer = found.get(f"/api/v1/artifacts/{GREET}/versions")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "secret" not in answer.text


def test_a_slash_too_many_leads_to_the_page_without_it(settings: Settings) -> None:
    with client(settings, allowed_hosts=("*",)) as api:
        answer = api.get(f"/a/{GREET}/", headers={"host": "evil.example"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, f"/a/{GREET}")


@pytest.mark.parametrize("path", ["/", "/nope", f"/api/v1/artifacts/{GREET}"])
def test_a_method_that_is_known_nowhere_is_told_what_is(api: TestClient, path: str) -> None:
    answer = api.request("TRACE", path)
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]
    page = api.post("/")
    assert (page.status_code, page.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "read with GET" in page.text


def test_a_method_that_a_route_has_not_is_405_with_what_it_has(api: TestClient) -> None:
    answer = api.delete("/api/v1/resolve")
    assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")
    assert "GET" in answer.headers["allow"]


def test_a_client_over_its_rate_waits_and_another_does_not(settings: Settings) -> None:
    with client(settings, rate=1.0, trusted_proxies=(ip_network("0.0.0.0/0"),)) as api:
        for _ in range(4):
            assert api.get("/healthz").status_code == 200
        answer = api.get("/healthz")
        assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
        assert int(answer.headers["retry-after"]) >= 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def scope(address: str) -> dict[str, object]:
    return {"client": (address, 1), "headers": []}


def test_an_allowance_comes_back_with_time_and_never_more_than_whole() -> None:
    clock = Clock()
    clients = Clients(10.0, now=clock)
    assert [clients.wait(scope("192.0.2.1")) for _ in range(40)] == [None] * 40
    assert clients.wait(scope("192.0.2.1")) == pytest.approx(0.1)
    clock.now = 0.1
    assert clients.wait(scope("192.0.2.1")) is None
    clock.now = 10_000.0
    assert [clients.wait(scope("192.0.2.1")) is None for _ in range(41)] == [True] * 40 + [False]


def test_an_ipv6_network_is_one_client_and_loopback_is_free_unless_told() -> None:
    clients = Clients(1.0, now=Clock())
    for number in range(4):
        assert clients.wait(scope(f"2001:db8::{number:x}")) is None
    assert clients.wait(scope("2001:db8::ffff")) is not None
    assert clients.wait(scope("2001:db8:0:1::1")) is None
    free = Clients(None, now=Clock())
    assert {free.wait(scope("::ffff:127.0.0.1")) for _ in range(1_000)} == {None}


def test_a_proxy_on_this_machine_that_nobody_trusts_is_one_client_and_told_of_once() -> None:
    warned: list[str] = []
    clients = Clients(None, now=Clock(), warn=lambda: warned.append("told"))
    refused = 0
    for number in range(1_000):
        asked = {
            "client": ("127.0.0.1", 1),
            "headers": [(b"x-forwarded-for", b"192.0.2.%d" % (number % 250))],
        }
        clients.identify(asked)
        refused += clients.wait(asked) is not None
    assert refused == 1_000 - 400
    assert warned == ["told"]
    own = {"client": ("127.0.0.1", 1), "headers": []}
    clients.identify(own)
    assert {clients.wait(own) for _ in range(1_000)} == {None}


def test_a_trusted_proxy_on_this_machine_tells_its_readers_apart() -> None:
    warned: list[str] = []
    clients = Clients(None, networks(("127.0.0.1",)), Clock(), lambda: warned.append("told"))
    for number in range(1_000):
        asked = {
            "client": ("127.0.0.1", 1),
            "headers": [(b"x-forwarded-for", b"192.0.2.%d" % (number % 250))],
        }
        clients.identify(asked)
        assert clients.wait(asked) is None
    assert warned == []


def test_the_log_says_once_that_a_proxy_is_not_trusted(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with client(settings, rate=None) as api:
        for _ in range(3):
            api.get("/healthz", headers={"x-forwarded-for": "192.0.2.1"})
    err = capsys.readouterr().err
    assert err.count("proxy-not-trusted") == 1
    assert "--trust-proxy" in err
    assert "192.0.2.1" not in err


def test_a_forged_chain_of_proxies_ends_at_the_first_that_is_not_trusted() -> None:
    clients = Clients(0, networks(("10.0.0.0/8",)))
    for sender, header, seen in [
        ("10.0.0.1", b"6.6.6.6, 192.0.2.9, 10.0.0.2", "192.0.2.9"),
        ("10.0.0.1", b"nonsense", "10.0.0.1"),
        ("10.0.0.1", b"192.0.2.9, nonsense, 10.0.0.2", "10.0.0.2"),
        ("192.0.2.7", b"10.0.0.3", "192.0.2.7"),
    ]:
        found = {"client": (sender, 1), "headers": [(b"x-forwarded-for", header)]}
        clients.identify(found)
        assert found["client"][0] == seen


def test_memory_of_clients_is_bounded() -> None:
    clients = Clients(1.0, now=Clock())
    for number in range(MAX_CLIENTS + 10):
        clients.wait(scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
    assert len(clients._buckets) == MAX_CLIENTS
