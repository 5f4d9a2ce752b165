# ruff: noqa: S314 - what is parsed here was written by the code under test
from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_site import GREET, Site, id_of

from mdr.digest import sha256
from mdr.registry.withdrawals import tombstone
from mdr.web.badge import MAX_NAME, badge, notice, text_width

SVG = "{http://www.w3.org/2000/svg}"


@given(st.text(max_size=80), st.sampled_from(["A", "B", "C", "D", "F", None]))
def test_every_name_gives_well_formed_xml_that_fits_its_frame(name: str, grade: str | None) -> None:
    root = ET.fromstring(badge(name, grade))
    texts = root.findall(f"{SVG}g/{SVG}text")
    assert len(texts) == 2
    end = int(texts[1].attrib["x"]) + int(texts[1].attrib["textLength"])
    assert end < int(root.attrib["width"])
    assert texts[1].text == f"audit {grade or '?'}"
    assert len(texts[0].text or "") <= MAX_NAME
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        "svg", "title", "clipPath", "rect", "g", "text",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["</text><script>boom()</script>", '"><a', "a&b", "\x00\x1b", "\u202egpj", "\ud800"]
)
def test_hostile_names_stay_text(name: str) -> None:
    root = ET.fromstring(badge(name, "A"))
    assert root.find(f".//{SVG}script") is None
    assert "\u202e" not in badge(name, "A")


def test_wider_text_has_a_wider_badge() -> None:
    assert text_width("iiii") < text_width("mmmm") < text_width("\u6587\u6587\u6587\u6587")
    assert text_width("") == 0
    # 11 px DejaVu Sans as measured by a browser
    assert text_width("audit A") == 40


def test_the_badge_of_an_artifact_says_its_grade(site: Site) -> None:
    svg = site.client.get(f"/badge/{GREET}.svg").text
    assert "greet: audit C" in svg
    assert site.client.get(f"/badge/{id_of('AGENTS.md')}.svg").text.count("audit A") == 3


def test_a_badge_of_nothing_is_a_404_with_a_picture(site: Site) -> None:
    answer = site.client.get("/badge/art_aaaaaaaaaaaaaaaa.svg")
    assert (answer.status_code, answer.text) == (404, notice("mdr", "not found"))


def test_the_badge_of_withdrawn_bytes_says_so(site: Site) -> None:
    from web_site import HOSTILE

    tombstone(site.stores, sha256(HOSTILE), reason="bad", by="test")
    answer = site.client.get(f"/badge/{id_of('skills/evil/SKILL.md')}.svg")
    assert answer.status_code in {200, 404, 451}
    assert "audit F" not in answer.text
