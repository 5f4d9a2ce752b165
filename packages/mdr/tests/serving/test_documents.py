"""Every read of the contract: its document, its validators, its problems."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from pydantic import BaseModel
from starlette.testclient import TestClient
from web_site import FIRST, GREET, SECOND

from mdr.api import models
from mdr.digest import sha256

if TYPE_CHECKING:
    from mdr.settings import Settings

REF = "acme/tools/greet"
ZSTD = bytes.fromhex("28b52ffd")
NEW, OLD = sha256(SECOND), sha256(FIRST)


def labels(api: TestClient) -> list[str]:
    return [v["label"] for v in api.get(f"/api/v1/artifacts/{GREET}/versions").json()["items"]]


def reads(api: TestClient) -> dict[str, type[BaseModel]]:
    newest, oldest = labels(api)
    base = f"/api/v1/artifacts/{GREET}"
    return {
        "/api/v1/artifacts?q=greet&limit=2": models.SearchDocument,
        base: models.ShowDocument,
        f"{base}/versions?limit=1": models.VersionsDocument,
        f"{base}/versions/{newest}": models.VersionDocument,
        f"{base}/versions/latest": models.VersionDocument,
        f"{base}/diff?from={oldest}&to={newest}": models.DiffDocument,
        f"{base}/diff?from=sha256:{OLD}": models.DiffDocument,
        f"/api/v1/resolve?ref={REF}": models.ResolveDocument,
        f"/api/v1/audit/{NEW}": models.AuditDocument,
        f"/api/v1/audit/{NEW}?kind=rule&ruleset=r1": models.AuditDocument,
    }


def test_every_document_has_exactly_the_described_fields_and_schema_first(api: TestClient) -> None:
    for path, model in reads(api).items():
        answer = api.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert next(iter(json.loads(answer.text))) == "schema"
        model.model_validate(answer.json())


def test_the_documents_are_those_of_the_command_line(
    api: TestClient, settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from mdr.cli.main import run

    newest, oldest = labels(api)
    pairs = {
        ("show", REF): f"/api/v1/artifacts/{GREET}",
        ("search", "greet", "--limit", "2"): "/api/v1/artifacts?q=greet&limit=2",
        ("diff", REF, oldest, newest): f"/api/v1/artifacts/{GREET}/diff?from={oldest}&to={newest}",
        ("audit", f"{REF}@{newest}"): None,
    }
    for command, path in pairs.items():
        monkeypatch.setattr("sys.argv", ["mdr", *command, "--json", "--data", str(settings.data)])
        with pytest.raises(SystemExit):
            run()
        told = without_views(json.loads(capsys.readouterr().out))
        if path is not None:
            assert told == without_views(api.get(path).json())
        else:  # with its folder, as `show` has it
            shown = api.get(f"/api/v1/artifacts/{GREET}").json()["audit"]
            assert told == {"schema": "mdr.audit/1", **shown}


def without_views(value: Any) -> Any:
    """A kept answer may tell an older number of badge views."""
    if isinstance(value, dict):
        return {k: without_views(v) for k, v in value.items() if k != "badge_views_30d"}
    return [without_views(each) for each in value] if isinstance(value, list) else value


def test_unchanged_is_a_304_for_every_read_and_changes_nothing_else(api: TestClient) -> None:
    for path in [*reads(api), f"/api/v1/blob/{NEW}", "/openapi.json"]:
        first = api.get(path)
        again = api.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
        assert again.headers["etag"] == first.headers["etag"]
        assert api.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_head_has_the_headers_of_get_and_no_body(api: TestClient) -> None:
    for path in [*reads(api), f"/api/v1/blob/{NEW}", "/", "/api/v1/nope"]:
        get, head = api.get(path), api.head(path)
        assert head.content == b""
        assert head.status_code == get.status_code
        for name in ("etag", "content-type", "content-length"):
            assert head.headers.get(name) == get.headers.get(name), (path, name)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_documents_are_encoded_when_asked_with_a_validator_of_their_own(
    api: TestClient, encoding: str
) -> None:
    path = f"/api/v1/artifacts/{GREET}"
    plain = api.get(path, headers={"accept-encoding": "identity"})
    coded = api.get(path, headers={"accept-encoding": f"{encoding};q=0.9, br"})
    assert coded.headers["content-encoding"] == encoding
    assert int(coded.headers["content-length"]) < int(plain.headers["content-length"])
    data = coded.content  # the client decodes what it knows, and zstd is not always among that
    body = zstandard.ZstdDecompressor().decompress(data) if data[:4] == ZSTD else data
    assert without_views(json.loads(body)) == without_views(plain.json())
    assert coded.headers["etag"] != plain.headers["etag"]
    assert "accept-encoding" in coded.headers["vary"]
    both = api.get(path, headers={"if-none-match": coded.headers["etag"]})
    assert both.status_code == 304


def test_a_blob_is_its_hash_for_ever_and_never_encoded(api: TestClient) -> None:
    answer = api.get(f"/api/v1/blob/{NEW}", headers={"accept-encoding": "gzip, zstd"})
    assert answer.content == SECOND
    assert answer.headers["etag"] == f'"{NEW}"'
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "status", "span", "body"),
    [
        ("bytes=0-3", 206, (0, 4), None),
        ("bytes=5-", 206, (5, None), None),
        ("bytes=-7", 206, (-7, None), None),
        ("bytes=0-999999", 206, (0, None), None),
        ("bytes=999999-", 416, None, b""),
        ("bytes=-0", 416, None, b""),
        ("bytes=3-1", 200, (0, None), None),
        ("bytes=0-1,4-5", 200, (0, None), None),
        ("lines=0-1", 200, (0, None), None),
    ],
)
def test_ranges(
    api: TestClient,
    asked: str,
    status: int,
    span: tuple[int, int | None] | None,
    body: bytes | None,
) -> None:
    answer = api.get(f"/api/v1/blob/{NEW}", headers={"range": asked})
    assert answer.status_code == status
    assert answer.content == (body if span is None else SECOND[slice(*span)])
    if status == 416:
        assert answer.headers["content-range"] == f"bytes */{len(SECOND)}"
    if status == 206:
        first = (
            len(SECOND) - len(answer.content) if asked.startswith("bytes=-") else (span or (0,))[0]
        )
        last = first + len(answer.content) - 1
        assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(SECOND)}"


def test_if_range_gives_a_part_of_the_same_bytes_only(api: TestClient) -> None:
    path, part = f"/api/v1/blob/{NEW}", {"range": "bytes=0-3"}
    assert api.get(path, headers={**part, "if-range": f'"{NEW}"'}).status_code == 206
    for other in (f'W/"{NEW}"', '"other"', "Wed, 21 Oct 2015 07:28:00 GMT"):
        assert api.get(path, headers={**part, "if-range": other}).content == SECOND


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/resolve?ref=nonsense", 400, "bad-reference"),
        (f"/api/v1/resolve?ref={REF}@sha256:abc", 400, "digest-too-short"),
        ("/api/v1/resolve?ref=nobody/nothing/here", 404, "not-found"),
        (f"/api/v1/resolve?ref={REF}@git:20000101.0000000", 404, "not-found"),
        ("/api/v1/resolve", 422, "invalid"),
        ("/api/v1/artifacts/art_0000000000000000", 404, "not-found"),
        ("/api/v1/artifacts/art_0000000000000000/versions", 404, "not-found"),
        (f"/api/v1/artifacts/{GREET}/versions?cursor=x", 422, "bad-cursor"),
        (f"/api/v1/artifacts/{GREET}/versions/nonsense", 400, "bad-reference"),
        (f"/api/v1/artifacts/{GREET}/diff?to=latest", 422, "invalid"),
        ("/api/v1/artifacts?limit=0", 422, "invalid"),
        ("/api/v1/artifacts?cursor=zzz", 422, "bad-cursor"),
        (f"/api/v1/blob/{'0' * 64}", 404, "not-found"),
        ("/api/v1/blob/abc", 422, "invalid"),
        (f"/api/v1/audit/{NEW}?ruleset=r99", 422, "unknown-ruleset"),
        ("/api/v1/nope", 404, "not-found"),
    ],
)
def test_problems(api: TestClient, path: str, status: int, code: str) -> None:
    answer = api.get(path)
    found = answer.json()
    assert (answer.status_code, found["code"], found["status"]) == (status, code, status)
    assert answer.headers["content-type"] == "application/problem+json"
    models.Problem.model_validate(found)


def test_a_name_of_several_artifacts_lists_them(api: TestClient) -> None:
    from mdr.api.problems import problem
    from mdr.errors import BadReference

    refs = ["acme/tools:a/x/SKILL.md", "acme/tools:b/x/SKILL.md"]
    error = BadReference("ambiguous-reference", "x names 2 artifacts", data={"candidates": refs})
    document = problem(error)
    assert (document["status"], document["candidates"]) == (409, refs)


def test_versions_are_paged_without_loss(api: TestClient) -> None:
    path, seen, cursor = f"/api/v1/artifacts/{GREET}/versions?limit=1", [], None
    while True:
        page = api.get(path + (f"&cursor={cursor}" if cursor else "")).json()
        seen += [each["label"] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == labels(api)


def test_verify_answers_in_the_order_asked(api: TestClient) -> None:
    unknown = "f" * 64
    items = api.post("/api/v1/verify", json={"hashes": [unknown, NEW, unknown]}).json()["items"]
    models.KnownDocument.model_validate({"schema": "mdr.verify-hashes/1", "items": items})
    assert [each["sha256"] for each in items] == [unknown, NEW, unknown]
    assert [each["known"] for each in items] == [False, True, False]
    assert items[1]["size"] == len(SECOND)
    assert f"{REF}@{labels(api)[0]}" in items[1]["refs"]
    for ref in items[1]["refs"]:
        assert api.get("/api/v1/resolve", params={"ref": ref}).json()["version"]["sha256"] == NEW


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"hashes": "x"}', b'{"hashes": ["x"]}', b'{"hashes": [1]}']
)
def test_verify_refuses_what_is_no_list_of_hashes(api: TestClient, body: bytes) -> None:
    answer = api.post("/api/v1/verify", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_too_many_hashes_are_refused(api: TestClient) -> None:
    assert api.post("/api/v1/verify", json={"hashes": ["0" * 64] * 1001}).status_code == 422
    assert api.post("/api/v1/verify", json={"hashes": ["0" * 64] * 1000}).status_code == 200


def test_answers_that_are_kept_are_counted_under_their_route(api: TestClient) -> None:
    path, line = f"/api/v1/blob/{NEW}", 'route="/api/v1/blob/{sha256}",status="200"'

    def counted() -> float:
        lines = api.get("/metrics").text.splitlines()
        found = [each for each in lines if line in each and 'method="GET"' in each]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    before = counted()
    for _ in range(3):
        assert api.get(path).status_code == 200
    assert counted() == before + 3
