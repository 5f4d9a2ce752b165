from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from git_builder import GitRepository
from web_site import EVIL, FIRST, GREET, HOSTILE, ODD_NAME, Site, id_of
from web_words import Words, in_order

from mdr.digest import sha256
from mdr.errors import BadReference, MdrError, Refusal, SourceError, StoreError, UsageError
from mdr.registry.indexing import index_source
from mdr.registry.withdrawals import yank


def test_the_audit_page_explains_every_check_of_the_ruleset(site: Site) -> None:
    from mdr.audit.rulesets import LATEST, ruleset_of

    page = Words(site.page("/about/audit"))
    ids = {attrs.get("id") for tag, attrs in page.tags if tag == "h2"}
    for number, check in enumerate(ruleset_of(LATEST), start=1):
        assert check.id in ids
        assert f"{number}. {check.title}" in page.words
    assert "not said" not in page.words
    assert "An A does not mean safe." in page.words


def test_the_catalogue_is_the_reference_page_read_again() -> None:
    import importlib.util

    root = Path(__file__).parents[4]
    spec = importlib.util.spec_from_file_location(
        "audit_catalogue", root / "tools/audit_catalogue.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = files("mdr.web").joinpath("data", "audit_catalogue.json").read_text("utf-8")
    assert json.loads(text)["definitions"] == tool.definitions()


PAGES = (
    "/",
    "/search",
    "/search?q=greet&kind=skill",
    f"/a/{GREET}",
    f"/a/{EVIL}",
    f"/a/{id_of('AGENTS.md')}",
    f"/a/{id_of(f'skills/{ODD_NAME}/SKILL.md')}",
    f"/a/{EVIL}/v/latest",
    f"/a/{GREET}/v/latest",
    "/o/acme",
    "/r/acme/tools",
    f"/hash/{sha256(HOSTILE)}",
    "/about/audit",
)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_well_formed_safe_and_can_be_asked_about_again(site: Site, path: str) -> None:
    answer = site.client.get(path)
    assert answer.status_code == 200
    page = Words(answer.text)
    assert page.balanced
    assert page.open == []
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    for tag, attrs in page.tags:
        assert "style" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        if tag in {"script", "link", "img"} and attrs.get("rel") not in {"canonical", "alternate"}:
            assert (attrs.get("src") or attrs.get("href") or "").startswith("/static/")
        if tag == "a" and "href" in attrs:
            assert re.match(r"(/|#|https?://|mailto:)", attrs["href"] or "")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert answer.headers["cache-control"] == "public, no-cache"
    again = site.client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.text) == (304, "")


def test_an_answer_changes_its_validator_when_the_registry_changes(
    site: Site, tmp_path: Path
) -> None:
    before = site.client.get("/search").headers["etag"]
    repository = GitRepository(tmp_path / "new.git")
    repository.commit({"skills/new/SKILL.md": FIRST})
    index_source(str(repository.path), site.service.settings, name_as="Acme/New")
    assert site.client.get("/search", headers={"if-none-match": before}).status_code == 200


def test_assets_never_change_under_their_names(site: Site) -> None:
    for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', site.page("/")):
        answer = site.client.get(name)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert sha256(answer.content)[:16] in name
    assert site.client.get("/static/site.css").status_code == 404
    assert site.client.get("/static/..%2fpages.py").status_code == 404


def test_errors_have_the_look_of_the_pages_and_tell_nothing_of_the_inside(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Nothing is here" in Words(site.page("/no/such/page", 404)).words
    assert site.client.post("/search").status_code == 405

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(site.service.reading, "artifact", broken)
    answer = site.client.get(f"/a/{EVIL}")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert "Something broke on our side" in Words(answer.text).words


def test_a_database_that_is_down_is_503_and_names_no_path(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mdr.errors import StoreError

    def down(*_: object, **__: object) -> None:
        raise StoreError("index-unreadable", "cannot open /var/lib/secret/index.sqlite")

    monkeypatch.setattr(site.service.reading, "artifact", down)
    answer = site.client.get(f"/a/{EVIL}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "/var/lib" not in answer.text


def test_an_empty_registry_says_how_to_begin(tmp_path: Path) -> None:
    from starlette.testclient import TestClient
    from web_site import opened

    from mdr.registry.stores import open_stores
    from mdr.settings import Settings
    from mdr.web.routes import create

    settings = Settings(data=tmp_path / "data", index_on_demand=False)
    stores = open_stores(settings, create=True)
    assert stores is not None
    stores.close()
    with opened(settings) as (service, views), TestClient(create(service, views)) as client:
        assert "Nothing is indexed yet" in client.get("/").text
        assert client.get("/search").status_code == 200
        assert client.get("/sitemap.xml").status_code == 200


def test_the_command_of_the_page_gets_the_grade_of_the_page(served: str) -> None:
    import os
    import shutil
    import subprocess
    import sys
    import urllib.request

    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with urllib.request.urlopen(f"{served}/a/{EVIL}") as answer:  # noqa: S310 - our own server
        html = answer.read().decode()
    command = re.search(r"<code>(curl -s [^<]* mdr audit - --kind \w+)</code>", html)
    assert command is not None
    folder = Path(sys.executable).parent
    done = subprocess.run(
        ["sh", "-c", command.group(1) + " --json"],
        capture_output=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        check=True,
    )
    document = json.loads(done.stdout)
    shown = re.search(r'<span class="grade grade-(\w)">|<a class="grade grade-(\w)"', html)
    assert shown is not None
    assert document["sha256"] == sha256(HOSTILE)
    assert document["grade"] == (shown.group(1) or shown.group(2)) == "F"


def test_what_is_refused_before_any_route_is_a_page_for_people_and_a_problem_for_programs(
    served: str,
) -> None:
    import http.client

    host = served.removeprefix("http://")
    for path, media_type in (
        ("/search", "text/html"),
        ("/api/v1/artifacts", "application/problem+json"),
    ):
        connection = http.client.HTTPConnection(host)
        connection.request("GET", f"{path}?q={'x' * 9_000}")
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        assert answer.status == 414
        assert answer.headers["content-type"].startswith(media_type)
        assert "uri-too-long" in body


def test_a_kept_page_has_new_views_and_never_an_old_state(site: Site) -> None:
    from mdr.registry.withdrawals import unyank

    page = f"/a/{GREET}"
    assert "0 badge views" in site.page(page + "?1")
    site.client.get(f"/badge/{GREET}.svg")
    site.views.flush()
    assert "1 badge views in 30 days" in site.page(page + "?2")
    artifact = site.service.reading.found(GREET)
    yank(site.stores, artifact, site.labels[1], reason="old", by="test")
    assert "yanked" in site.page(page + "?3")
    unyank(site.stores, artifact, site.labels[1], by="test")
    assert "yanked" not in site.page(page + "?4")


def test_the_least_recently_asked_for_page_is_forgotten_first() -> None:
    from mdr.web.artifact_page import Drawn

    drawn = Drawn(room=2)
    for name in ("a", "b"):
        drawn.put(name, "1", name.encode())
    assert drawn.get("a", "1") == b"a"
    drawn.put("c", "1", b"c")
    assert (drawn.get("a", "1"), drawn.get("b", "1"), drawn.get("c", "1")) == (b"a", None, b"c")
    assert drawn.get("a", "2") is None


@pytest.mark.parametrize("path", ["/acme/tools/greet", "/skills/gret"])
def test_a_wrong_address_suggests_what_its_last_word_finds(site: Site, path: str) -> None:
    page = Words(site.page(path, 404))
    in_order(page.words, "Nothing is here", "Did you mean", "acme/tools/greet")
    assert f"/a/{GREET}" in [attrs.get("href") for _, attrs in page.tags]
    assert "Did you mean" not in site.page("/no/zzzzqqqq", 404)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("bad-cursor", "x"), 422),
        (BadReference("bad-reference", "x"), 400),
        (SourceError("host-unknown", "x"), 502),
        (StoreError("index-unreadable", "x"), 503),
        (Refusal("token-missing", "x"), 401),
        (Refusal("private-address", "x"), 403),
        (MdrError("internal", "x"), 500),
    ],
)
def test_a_page_has_the_status_of_the_document(error: MdrError, status: int) -> None:
    from mdr.api.problems import TITLES, problem
    from mdr.web import problems

    page = problems.problem_page(error, "")
    assert page.status == problem(error)["status"] == status
    assert status in TITLES
    assert status in problems.TITLES
