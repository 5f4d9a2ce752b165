from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from git_builder import GitRepository
from web_site import EVIL, FIRST, GREET, HOSTILE, ODD_NAME, SECOND, Site, id_of

from mdr.digest import sha256
from mdr.errors import BadReference, MdrError, Refusal, SourceError, StoreError, UsageError
from mdr.registry.indexing import index_source
from mdr.registry.withdrawals import tombstone, yank

VOID = frozenset(["meta", "link", "img", "input", "br", "hr", "col"])


class Words(HTMLParser):
    """Collects text, tags with attributes, and whether tags balance."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.balanced = True
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.balanced = False

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def in_order(text: str, *parts: str) -> None:
    """Assert that the parts stand in the text in this order."""
    position = 0
    for part in parts:
        found = text.find(part, position)
        assert found >= 0, f"{part!r} is missing or out of order"
        position = found + len(part)


def test_the_artifact_page_shows_what_the_seed_page_shows_in_its_order(site: Site) -> None:
    newest, oldest = site.labels
    digest = sha256(SECOND)
    words = Words(site.page(f"/a/{GREET}")).words
    in_order(
        words,
        "greet",
        "skill",
        "audit C",
        "greet is agent-read markdown (skill) from acme/tools: Greets people by name, politely, in whatever language they speak.",
        "immutable, content-addressed versions",
        "What the file says",
        "# Greeting <!-- Guidance refreshed: 2026-01-01. --> Say hello first.",
        "Read the whole file at its exact version.",
        "How to install",
        f"mdr add acme/tools/greet@{newest}",
        f"mdr add acme/tools/greet@sha256:{digest[:16]}",
        f"[![greet](http://registry.example/badge/{GREET}.svg)](http://registry.example/a/{GREET})",
        "0 badge views in 30 days",
        "Versions",
        f"{newest} latest",
        f"{len(SECOND):,} B",
        "view · diff",
        oldest,
        f"{len(FIRST):,} B",
        "view",
        "Audit of the latest version",
        "pass: Frontmatter block present",
        "pass: Frontmatter declares a name",
        "pass: Frontmatter declares a description",
        f"pass: Size between 200 bytes and 200 KB ({len(SECOND)} bytes)",
        "fail: No zero-width or bidi control characters (1 place)",
        "pass: No instruction hidden inside an HTML comment",
        "pass: No link to an exfiltration or paste host",
        "pass: No credential-shaped string",
        "pass: No instruction to send local credentials anywhere",
        "pass: No text hidden with inline styles",
        "pass: No prompt-injection phrasing",
        "pass: No curl or wget piped into a shell",
        "pass: No recursive delete of root, home or parent",
        "pass: No instruction to read or print local credentials",
        "pass: No base64 blob over 200 characters",
        "pass: No link to a raw IP address",
        "pass: No script tag",
        "Source",
        "acme/tools · stars not known · license not known · pushed not known · branch main",
        "API",
        f"GET http://registry.example/api/v1/artifacts/{GREET}",
        "GET http://registry.example/api/v1/resolve?ref=acme/tools/greet",
        f"GET http://registry.example/api/v1/blob/{digest}",
    )


def test_the_oldest_version_has_no_diff_and_every_other_one_has(site: Site) -> None:
    html = site.page(f"/a/{GREET}")
    newest, oldest = site.labels
    assert re.findall(rf'href="/a/{GREET}/diff/([^"]+)"', html) == [f"{oldest}...{newest}"]
    assert re.findall(rf'href="/a/{GREET}/v/([^"#]+)" aria-label', html) == [newest, oldest]


def test_commits_lead_to_the_host(site: Site) -> None:
    commit = site.service.reading.versions(GREET, limit=1)["items"][0]["commit"]
    assert f'href="https://github.com/Acme/Tools/commit/{commit}"' in site.page(f"/a/{GREET}")


def test_a_name_that_two_files_share_is_installed_by_path(tmp_path: Path, site: Site) -> None:
    repository = GitRepository(tmp_path / "two.git")
    for folder in ("one", "two"):
        repository.commit({f"{folder}/same/SKILL.md": FIRST})
    settings = site.service.settings
    index_source(str(repository.path), settings, name_as="Acme/Two")
    from mdr.artifact.types import artifact_id

    page = site.page(f"/a/{artifact_id('github.com', 'Acme/Two', 'one/same/SKILL.md')}")
    command = re.search(r"<code>mdr add ([^<]*@git:[^<]*)</code>", page)
    assert command is not None
    assert command.group(1).startswith("acme/two:one/same/SKILL.md@git:")


@pytest.mark.parametrize("name", ["bare", "label", "sha256"])
def test_every_line_to_copy_resolves_to_the_version_it_stands_beside(site: Site, name: str) -> None:
    from mdr.web.artifact_page import references

    for path in ("skills/greet/SKILL.md", f"skills/{ODD_NAME}/SKILL.md", "AGENTS.md"):
        document = site.service.reading.artifact(id_of(path))
        latest = document["versions"][0]
        written = references(site.service, document["artifact"], latest)[name]
        found = site.service.reading.resolve(written)
        assert found["artifact"]["id"] == id_of(path)
        assert found["version"]["label"] == latest["label"]


def test_a_yanked_version_says_so_everywhere_it_is_shown(site: Site) -> None:
    newest, _ = site.labels
    artifact = site.service.reading.found(GREET)
    yank(site.stores, artifact, newest, reason="it <b>shouts</b>", by="test")
    version = Words(site.page(f"/a/{GREET}/v/{newest}"))
    assert "Yanked. it <b>shouts</b>" in version.words
    assert "yanked" in Words(site.page(f"/a/{GREET}")).words
    assert "yanked: it &lt;b&gt;shouts" in site.client.get(f"/a/{GREET}/feed.atom").text


def test_withdrawn_bytes_answer_451_with_hash_and_reason_on_every_page(site: Site) -> None:
    digest = sha256(SECOND)
    tombstone(site.stores, digest, reason="steals keys", advisory="https://a.example/1", by="test")
    newest, oldest = site.labels
    for path in (
        f"/hash/{digest}",
        f"/a/{GREET}/v/{newest}",
        f"/a/{GREET}/diff/{oldest}...{newest}",
    ):
        words = Words(site.page(path, 451)).words
        in_order(words, "These bytes were withdrawn", "steals keys", digest, "https://a.example/1")
    assert "Use it once." in site.page(f"/a/{GREET}/v/{oldest}")


def test_the_version_page_renders_lists_hidden_parts_and_numbers_lines(site: Site) -> None:
    newest, _ = site.labels
    html = site.page(f"/a/{GREET}/v/{newest}")
    page = Words(html)
    in_order(
        page.words,
        "Hidden parts",
        "line 8: HTML comment <!-- Guidance refreshed: 2026-01-01. -->",
        "line 22: link definition [//]: # (a note that renderers swallow)",
        "line 24: zero-width character U+200B <U+200B>",
        "Rendered",
        "name: greet",
        "Greeting",
        "hidden <!-- Guidance refreshed: 2026-01-01. -->",
        "bash run these in order",
        "U+200B",
        "Lines",
        "Audit",
        "Folder",
        "Recompute",
    )
    lines = SECOND.decode().split("\n")
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "li" and "id" in attrs]
    assert ids == [f"L{number}" for number in range(1, len(lines))]
    note = re.search(r'<li id="L24">.*?</li>', html, re.DOTALL)
    assert note is not None
    assert "No zero-width or bidi control characters" in note.group()


def test_links_of_a_file_lead_to_its_commit_and_images_are_not_loaded(site: Site) -> None:
    newest, _ = site.labels
    version = site.service.reading.version(GREET, newest)["version"]
    page = Words(site.page(f"/a/{GREET}/v/{newest}"))
    hrefs = [attrs.get("href") for tag, attrs in page.tags if tag == "a"]
    base = f"https://github.com/Acme/Tools/blob/{version['commit']}/skills/greet"
    assert f"{base}/notes/how.md" in hrefs
    assert "https://tracker.example/wave.png" in hrefs
    assert [attrs["src"] for tag, attrs in page.tags if tag == "img"] == [
        next(attrs["href"] for tag, attrs in page.tags if attrs.get("rel") == "icon")
    ]


@pytest.mark.parametrize("other", ["latest", "sha256", "bare digits"])
def test_latest_and_hashes_lead_to_the_page_of_their_label(site: Site, other: str) -> None:
    _, oldest = site.labels
    digest = sha256(FIRST)
    asked = {"latest": "latest", "sha256": f"sha256:{digest[:14]}", "bare digits": digest}[other]
    expected = site.labels[0] if other == "latest" else oldest
    answer = site.client.get(f"/a/{GREET}/v/{asked}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, f"/a/{GREET}/v/{expected}")


def test_other_files_of_a_version_have_pages_and_missing_ones_do_not(site: Site) -> None:
    newest, _ = site.labels
    html = site.page(f"/a/{GREET}/v/{newest}/f/notes/how.md")
    assert '<li id="L1">' in html
    assert "How to greet." in html
    assert "has no file" in Words(site.page(f"/a/{GREET}/v/{newest}/f/nothing", 404)).words


def test_the_diff_page_shows_meaning_files_and_marked_words(site: Site) -> None:
    newest, oldest = site.labels
    html = site.page(f"/a/{GREET}/diff/{oldest}...{newest}")
    assert "<del>once</del>" in html
    assert "<ins>twice, and smile</ins>" in html or "<ins>twice</ins>" in html
    in_order(
        Words(html).words,
        "lines added",
        "What changes for an agent",
        "No host, command, tool or credential path was added or removed.",
        "Grade: A → C",
        "Files",
        "changed SKILL.md",
    )


@pytest.mark.parametrize(
    "span", ["latest", "a...b", "...", "latest...", "git:20260101.0000000...latest"]
)
def test_a_comparison_that_cannot_be_meant_is_refused(site: Site, span: str) -> None:
    answer = site.client.get(f"/a/{GREET}/diff/{span}")
    assert answer.status_code in {400, 404}
    assert "Traceback" not in answer.text


def test_a_hash_shows_every_place_of_its_bytes(site: Site) -> None:
    words = Words(site.page(f"/hash/{sha256(SECOND)}")).words
    in_order(words, "2 versions of 2 artifacts", "skills/")
    assert "skills/greet/SKILL.md" in words
    assert "skills/copy/SKILL.md" in words
    other = Words(site.page(f"/hash/{sha256(b'How to greet.' + bytes([10]))}")).words
    assert "another file of an artifact's folder" in other
    site.page("/hash/" + "0" * 64, 404)
    site.page("/hash/abc", 400)


def test_owner_and_repository_pages_ignore_case_and_suggest_near_names(site: Site) -> None:
    assert "Acme/Tools" in site.page("/o/ACME")
    page = Words(site.page("/r/acme/tools"))
    assert f"/a/{GREET}" in [attrs.get("href") for _, attrs in page.tags]
    for wrong in ("/o/acne", "/r/acme/tool"):
        words = Words(site.page(wrong, 404))
        assert "Did you mean" in words.words
        assert {"/o/Acme", "/r/Acme/Tools"} & {attrs.get("href") for _, attrs in words.tags}


def test_a_repository_with_many_artifacts_comes_in_pages(site: Site, tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "many.git")
    repository.commit({f"skills/s{number:03}/SKILL.md": FIRST for number in range(150)})
    index_source(str(repository.path), site.service.settings, name_as="Acme/Many")
    seen: list[str] = []
    for number in (1, 2):
        seen += re.findall(r'<h3><a href="/a/(art_\w+)"', site.page(f"/r/acme/many?page={number}"))
    assert len(seen) == len(set(seen)) == 150
    for odd in ("0", "-1", "x", "9" * 400, "٣"):
        site.page(f"/r/acme/many?page={odd}")


def test_search_finds_narrows_and_keeps_words_in_its_links(site: Site) -> None:
    page = Words(site.page("/search?q=greets"))
    assert "Results for “greets”" in page.words
    links = [attrs.get("href") or "" for tag, attrs in page.tags if tag == "a"]
    narrowed = next(link for link in links if "grade=C" in link)
    assert "q=greets" in narrowed
    words = Words(site.page(narrowed)).words
    assert re.search("Grade: C .?, remove", words)
    assert "greet" in words
    assert "Nothing fits" in Words(site.page("/search?q=zzzzqqqq")).words
    site.page("/search?cursor=nonsense", 422)


def test_pages_of_results_follow_each_other_without_gap(site: Site, tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "more.git")
    repository.commit({f"skills/m{number:02}/SKILL.md": FIRST for number in range(30)})
    index_source(str(repository.path), site.service.settings, name_as="Acme/More")
    seen: list[str] = []
    address: str | None = "/search?owner=acme"
    while address is not None:
        html = site.page(address)
        seen += re.findall(r'<h2><a href="/a/(art_\w+)"', html)
        found = re.search(r'rel="next" href="([^"]+)"', html)
        address = None if found is None else found.group(1).replace("&amp;", "&")
    assert len(seen) == len(set(seen)) == 30 + 5


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
