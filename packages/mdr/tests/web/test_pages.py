from __future__ import annotations

import re
from pathlib import Path

import pytest
from git_builder import GitRepository
from web_site import FIRST, GREET, ODD_NAME, SECOND, Site, id_of
from web_words import Words, in_order

from mdr.digest import sha256
from mdr.registry.indexing import index_source
from mdr.registry.withdrawals import tombstone, yank


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
