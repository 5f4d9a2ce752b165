# ruff: noqa: S314 - what is parsed here was written by the code under test
from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from git_builder import GitRepository
from hypothesis import given
from hypothesis import strategies as st
from web_site import BASE, FIRST, GREET, Site

from mdr.registry.indexing import index_source
from mdr.web.feeds import ATOM, SITEMAP, xml_text

A = f"{{{ATOM}}}"
S = f"{{{SITEMAP}}}"
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def feed(site: Site, artifact_id: str = GREET) -> ET.Element:
    answer = site.client.get(f"/a/{artifact_id}/feed.atom")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/atom+xml; charset=utf-8"
    return ET.fromstring(answer.content)


def test_a_feed_has_what_rfc_4287_demands(site: Site) -> None:
    root = feed(site)
    assert root.tag == f"{A}feed"
    for element in (root, *root.findall(f"{A}entry")):
        for name in ("id", "title", "updated"):
            assert len(element.findall(f"{A}{name}")) == 1
        assert RFC_3339.fullmatch(element.findtext(f"{A}updated") or "")
        assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", element.findtext(f"{A}id") or "")
        alternates = element.findall(f"{A}link[@rel='alternate']")
        assert len(alternates) == 1
    assert root.findtext(f"{A}author/{A}name") == "Acme"
    assert root.find(f"{A}link[@rel='self']").attrib["href"] == f"{BASE}/a/{GREET}/feed.atom"  # type: ignore[union-attr]
    entries = root.findall(f"{A}entry")
    assert [each.findtext(f"{A}title") for each in entries] == [
        f"{site.labels[0]}, audit C",
        f"{site.labels[1]}, audit A",
    ]
    assert len({each.findtext(f"{A}id") for each in entries}) == 2


def test_ids_stay_when_versions_come_and_wherever_it_is_served(site: Site, tmp_path: Path) -> None:
    import uuid

    from mdr.web.feeds import NAMES

    before = [each.findtext(f"{A}id") for each in feed(site).findall(f"{A}entry")]
    assert before == [f"urn:uuid:{uuid.uuid5(NAMES, f'{GREET} {label}')}" for label in site.labels]
    assert feed(site).findtext(f"{A}id") == f"urn:uuid:{uuid.uuid5(NAMES, GREET)}"


def test_the_page_names_its_feed(site: Site) -> None:
    assert f'href="/a/{GREET}/feed.atom"' in site.page(f"/a/{GREET}")
    assert site.client.get("/a/art_nothing/feed.atom").status_code == 404


@given(st.text())
def test_any_text_can_stand_in_a_feed(text: str) -> None:
    element = ET.Element("x")
    element.text = xml_text(text)
    read = ET.fromstring(ET.tostring(element, encoding="utf-8")).text or ""
    assert read.replace("\r\n", "\n").replace("\r", "\n") == xml_text(text).replace(
        "\r\n", "\n"
    ).replace("\r", "\n")


def test_the_site_map_lists_every_artifact_that_exists_once(site: Site, tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "gone.git")
    repository.commit({"skills/gone/SKILL.md": FIRST, "skills/here/SKILL.md": FIRST})
    repository.commit({"skills/gone/SKILL.md": None})
    index_source(str(repository.path), site.service.settings, name_as="Acme/Gone")
    index = ET.fromstring(site.client.get("/sitemap.xml").content)
    assert index.tag == f"{S}sitemapindex"
    parts = [each.text or "" for each in index.iter(f"{S}loc")]
    assert parts == [f"{BASE}/sitemap-0.xml"]
    part = ET.fromstring(site.client.get("/sitemap-0.xml").content)
    pages = [each.text or "" for each in part.iter(f"{S}loc")]
    assert len(pages) == len(set(pages)) == 3 + 5 + 1
    for page in pages:
        assert site.client.get(page.removeprefix(BASE)).status_code == 200
    assert all(RFC_3339.fullmatch(each.text or "") for each in part.iter(f"{S}lastmod"))
    assert site.client.get("/sitemap-1.xml").status_code == 404


def test_robots_names_the_site_map_and_keeps_crawlers_from_endless_lists(site: Site) -> None:
    text = site.client.get("/robots.txt").text
    assert f"Sitemap: {BASE}/sitemap.xml" in text
    assert "Disallow: /search?" in text
    assert "Disallow: /a/*/diff/" in text
