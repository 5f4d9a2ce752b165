from __future__ import annotations

import re
from pathlib import Path

from git_builder import GitRepository
from web_site import FIRST, GREET, SECOND, Site
from web_words import Words, in_order

from mdr.digest import sha256
from mdr.registry.indexing import index_source


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
