"""Writes: a token of the right scope, an effect that readers see at once, and a line in the trail."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from web_site import FIRST, GREET, SECOND

from mdr.api.problems import headers_of
from mdr.digest import sha256
from mdr.errors import Refusal
from mdr.registry.stores import open_stores
from mdr.registry.tokens import SCOPES, issue, revoke
from mdr.settings import Settings

NEW, OLD = sha256(SECOND), sha256(FIRST)
VERSIONS = f"/api/v1/artifacts/{GREET}/versions"
Own = tuple[TestClient, Settings]


def secret_of(settings: Settings, *scopes: str, expires: str | None = None) -> str:
    stores = open_stores(settings, create=False)
    assert stores is not None
    _, secret = issue(stores, name="robot", scopes=scopes, expires=expires, by="test")
    stores.close()
    return secret


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def labels(api: TestClient) -> list[str]:
    return [each["label"] for each in api.get(VERSIONS).json()["items"]]


WRITES = {
    "versions:yank": ("PUT", f"{VERSIONS}/LABEL/yank", {"reason": "broken"}),
    "versions:tombstone": ("PUT", f"/api/v1/tombstones/{OLD}", {"reason": "leaks a key"}),
    "sources:write": ("POST", "/api/v1/sources", {"source": "github:acme/more"}),
    "disputes:write": (
        "POST",
        "/api/v1/disputes",
        {"artifact": GREET, "label": "LABEL", "check": "size", "text": "It is fine."},
    ),
    "claims:write": (
        "POST",
        "/api/v1/claims",
        {"host": "github.com", "repository": "acme/tools", "claimant": "me", "proof": "a commit"},
    ),
}


@pytest.mark.parametrize("scope", sorted(WRITES))
def test_a_write_needs_its_own_scope_and_leaves_a_line(own: Own, scope: str) -> None:
    api, settings = own
    method, path, body = WRITES[scope]
    label = labels(api)[0]
    path = path.replace("LABEL", label)
    sent = {k: label if v == "LABEL" else v for k, v in body.items()}

    def ask(headers: dict[str, str]) -> tuple[int, str | None]:
        answer = api.request(method, path, json=sent, headers=headers)
        problem = answer.headers.get("content-type") == "application/problem+json"
        return answer.status_code, answer.json()["code"] if problem else None

    assert ask({}) == (401, "token-missing")
    assert "mdr token issue" in api.request(method, path, json=sent).json()["hint"]
    assert ask(bearer("mdr_nonsense")) == (401, "token-unknown")
    assert ask(bearer(secret_of(settings, *(set(SCOPES) - {scope, "admin"})))) == (
        403,
        "token-scope",
    )
    assert ask(bearer(secret_of(settings, scope, expires="2020-01-01T00:00:00Z"))) == (
        401,
        "token-expired",
    )
    status, code = ask(bearer(secret_of(settings, scope)))
    assert (status // 100, code) == (2, None)
    trail = api.get("/api/v1/events", headers=bearer(secret_of(settings, "admin"))).json()["items"]
    done = [event for event in trail if event["actor"].startswith("robot (tok_")]
    assert len(done) == 1


def test_a_revoked_token_writes_nothing(own: Own) -> None:
    api, settings = own
    stores = open_stores(settings, create=False)
    assert stores is not None
    token, secret = issue(stores, name="n", scopes=["admin"], by="test")
    revoke(stores, token.id, by="test")
    answer = api.put(f"/api/v1/tombstones/{OLD}", json={"reason": "x"}, headers=bearer(secret))
    assert (answer.status_code, answer.json()["code"]) == (401, "token-revoked")
    assert api.get(f"/api/v1/blob/{OLD}").status_code == 200


def test_a_yank_moves_latest_at_once_and_keeps_pins(own: Own) -> None:
    api, settings = own
    door = bearer(secret_of(settings, "versions:yank"))
    newest, oldest = labels(api)
    resolve = "/api/v1/resolve?ref=acme/tools/greet"
    assert api.get(resolve).json()["version"]["label"] == newest  # kept from now on
    assert (
        api.put(f"{VERSIONS}/{newest}/yank", json={"reason": "broken"}, headers=door).status_code
        == 204
    )
    assert api.get(resolve).json()["version"]["label"] == oldest
    pinned = api.get(f"{resolve}@{newest}").json()["version"]
    assert pinned["yanked"]["reason"] == "broken"
    assert api.get(f"/api/v1/blob/{NEW}").content == SECOND
    assert api.delete(f"{VERSIONS}/{newest}/yank", headers=door).status_code == 204
    assert api.get(resolve).json()["version"]["label"] == newest


@pytest.mark.parametrize(
    ("advisory", "linked"),
    [
        ("https://advisories.example/1?a=b&c[0]=%20~x", True),
        ("https://a.example/>; rel=x", False),
        ("https://a.example/ b", False),
        ("https://a.example/\r\nx-evil: 1", False),
        ("https://a.example/\u00e9", False),
        ("http://a.example/", False),
        ("GHSA-1", False),
        (None, False),
    ],
)
def test_only_a_plain_address_of_an_advisory_becomes_a_header(
    advisory: str | None, linked: bool
) -> None:
    error = Refusal("tombstone", "withdrawn", data={"advisory": advisory})
    expected = {"link": f'<{advisory}>; rel="blocked-by"'} if linked else {}
    assert headers_of(error) == {"cache-control": "no-store", **expected}


def test_a_tombstone_answers_451_everywhere_though_the_answers_were_kept(own: Own) -> None:
    api, settings = own
    door = bearer(secret_of(settings, "versions:tombstone"))
    oldest = labels(api)[1]
    paths = [
        f"/api/v1/blob/{OLD}",
        f"/api/v1/audit/{OLD}",
        f"/api/v1/resolve?ref=acme/tools/greet@sha256:{OLD}",
        f"{VERSIONS}/{oldest}",
        f"/api/v1/artifacts/{GREET}/diff?from={oldest}",
    ]
    assert {api.get(path).status_code for path in paths} == {200}
    body = {"reason": "leaks a key", "advisory": "https://advisories.example/1"}
    assert api.put(f"/api/v1/tombstones/{OLD}", json=body, headers=door).status_code == 204
    for path in paths:
        answer = api.get(path)
        found = answer.json()
        assert (answer.status_code, found["code"]) == (451, "tombstone"), path
        assert (found["sha256"], found["reason"]) == (OLD, "leaks a key")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["link"] == '<https://advisories.example/1>; rel="blocked-by"'
        validated = api.get(path, headers={"if-none-match": f'"{OLD}"'})
        assert validated.status_code == 451
    (item,) = api.post("/api/v1/verify", json={"hashes": [OLD]}).json()["items"]
    assert (item["tombstone"]["reason"], item["advisories"]) == ("leaks a key", [body["advisory"]])
    assert api.delete(f"/api/v1/tombstones/{OLD}", headers=door).status_code == 204
    assert {api.get(path).status_code for path in paths} == {200}


@pytest.mark.parametrize(
    "source",
    ["/etc", "file:///etc", "ssh://host/x/y", "http://127.0.0.1/x/y", "git://x/y", "", "../x"],
)
def test_a_stranger_cannot_name_a_disk_or_an_odd_transport(own: Own, source: str) -> None:
    api, settings = own
    answer = api.post(
        "/api/v1/sources",
        json={"source": source},
        headers=bearer(secret_of(settings, "sources:write")),
    )
    assert answer.status_code in {403, 422}, answer.text


INSIDE = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "10.0.0.1", "169.254.169.254",
    "192.168.1.1:8443", "0.0.0.1", "[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]", "localhost", "LOCALHOST", "a.localhost", "localhost.",
    "ip6-localhost", "registry",
]  # fmt: skip


@pytest.mark.parametrize("host", INSIDE)
def test_a_source_that_names_an_address_inside_is_refused_at_once(own: Own, host: str) -> None:
    api, settings = own
    door = bearer(secret_of(settings, "sources:write", "admin"))
    answer = api.post("/api/v1/sources", json={"source": f"https://{host}/x/y"}, headers=door)
    if answer.status_code == 422:  # no spelling of a host at all
        assert answer.json()["code"] == "bad-source"
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "private-address")
        assert answer.json()["hint"]
    trail = api.get("/api/v1/events", headers=door).json()["items"]
    assert "source.ask" not in {event["action"] for event in trail}


@pytest.mark.parametrize(
    "host", ["git.example", "8.8.8.8", "[2606:4700::1111]", "127.example", "1.2.3.4.example"]
)
def test_a_source_that_may_be_outside_is_taken(own: Own, host: str) -> None:
    api, settings = own
    door = bearer(secret_of(settings, "sources:write"))
    answer = api.post("/api/v1/sources", json={"source": f"https://{host}/x/y"}, headers=door)
    assert answer.status_code == 202, answer.text
