from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from web_xss import VECTORS

from mdr.web.markdown import ATTRIBUTES, CLASSES, MAX_BYTES, TAGS, render
from mdr.web.targets import Home, resolved

HOME = Home(host="github.com", repository="a/b", path="skills/x/SKILL.md", commit="c" * 40)


class Checked(HTMLParser):
    """Asserts that a page's fragment holds nothing but what our lists allow."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        for name, value in attrs:
            assert name in ATTRIBUTES["*"] | ATTRIBUTES.get(tag, set()) | {"rel"}
            assert value is not None
            match name:
                case "href":
                    assert value.startswith(("https://", "http://", "mailto:", "#md-"))
                case "class":
                    assert set(value.split()) <= CLASSES
                case "id":
                    assert value.startswith("md-")
                    self.ids.append(value)
        if tag not in {"br", "hr"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment reached the page")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError("a declaration reached the page")

    def handle_pi(self, data: str) -> None:
        raise AssertionError("a processing instruction reached the page")


def html_of(text: str) -> str:
    rendered = render(text.encode("utf-8", "replace"), HOME)
    assert rendered is not None
    return str(rendered.html)


def shown(text: str) -> str:
    return " ".join("".join(Checked(html_of(text)).text).split())


@pytest.mark.parametrize("vector", VECTORS)
def test_no_way_in(vector: str) -> None:
    Checked(html_of(vector))
    Checked(html_of(f"text {vector} text\n\n- item {vector}\n\n> quote {vector}\n"))


@pytest.mark.parametrize("vector", [each for each in VECTORS if each.startswith("<")])
def test_what_would_run_can_be_read(vector: str) -> None:
    if "boom()" in vector and len(vector) < 300:
        assert "boom()" in shown(vector)


PIECES = st.sampled_from(
    [*VECTORS, *"<>\"'`*_[]()!#|\\&;:/-~= \n\t", "\n\n", "```", "<!--", "-->", "<a href=", "javascript:",
     "[x]: ", "](", "<b>", "</b>", "<td>", "<table>", "<details>", "&#x3c;", "\u200b", "\u202e", "\x00", "\x1b"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=6)), max_size=14).map("".join))
def test_nothing_but_our_tags_whatever_the_file(text: str) -> None:
    rendered = render(text.encode("utf-8", "replace"), HOME)
    if rendered is not None:
        Checked(str(rendered.html))
        Checked(str(rendered.frontmatter))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abc<>!-[]: ", min_size=1, max_size=40))
def test_no_word_of_a_comment_is_lost(words: str) -> None:
    text = "".join(char for char in words if char in "abc")
    assert text in shown(f"before <!-- {text} --> after\n\n<!-- {text} -->\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- note -->\n", "hidden <!-- note -->"),
        ("a <!-- note --> b", "hidden <!-- note -->"),
        ("<!-- never closed", "hidden <!-- never closed"),
        ("[//]: # (note)", '[//]: # "note"'),
        ("para\n\n[x]: https://a.example 'secret'\n\npara", '[x]: https://a.example "secret"'),
        ("<?php note ?>", "<?php note ?>"),
        ("<!DOCTYPE note>", "<!DOCTYPE note>"),
        ("<span style='opacity:0'>note</span>", "may hide text <span style='opacity:0'>note"),
        ("<p hidden>note</p>", "may hide text <p hidden>note"),
        ("<template>note</template>", "may hide text <template>note"),
        ("```sh note here\nx\n```", "sh note here"),
        ("[x](https://a.example 'note')", "x note"),
        ("![note](https://a.example/x.png)", "image note"),
        ("a\u200bb", "aU+200Bb"),
        ("a&#8203;b", "aU+200Bb"),
        ("`a\u202eb`", "aU+202Eb"),
    ],
)
def test_hidden_parts_are_shown(text: str, words: str) -> None:
    assert words in shown(text)


def test_emoji_and_joined_scripts_are_left_alone() -> None:
    text = "\u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467 \u0646\u0645\u06cc\u200c\u062e"
    assert text in "".join(Checked(html_of(text)).text)


def test_headings_never_skip_a_level_and_have_ids_of_their_own() -> None:
    rendered = render(b"### a\n\n# b\n\n##### c\n\n# b\n", HOME)
    assert rendered is not None
    assert [(each.level, each.anchor) for each in rendered.headings] == [
        (2, "md-a"), (2, "md-b"), (3, "md-c"), (2, "md-b-1"),
    ]  # fmt: skip


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\0b", b"x" * (MAX_BYTES + 1)])
def test_what_is_not_text_or_too_large_is_not_rendered(data: bytes) -> None:
    assert render(data, HOME) is None


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("notes/a.md", "https://github.com/a/b/blob/" + "c" * 40 + "/skills/x/notes/a.md"),
        ("../y/SKILL.md#top", "https://github.com/a/b/blob/" + "c" * 40 + "/skills/y/SKILL.md#top"),
        ("/README.md", "https://github.com/a/b/blob/" + "c" * 40 + "/README.md"),
        ("a%20b.md", "https://github.com/a/b/blob/" + "c" * 40 + "/skills/x/a%20b.md"),
        ("#part", "#md-part"),
        ("https://a.example/x?y", "https://a.example/x?y"),
        ("mailto:a@b.example", "mailto:a@b.example"),
        ("../../../etc/passwd", None),
        ("%2e%2e/%2e%2e/%2e%2e/x", None),
        ("//evil.example/x", None),
        ("javascript:boom()", None),
        ("https:///nohost", None),
        ("http://[::1", None),
        ("a\\b", None),
        ("x" * 5_000, None),
        ("", None),
    ],
)
def test_targets(target: str, address: str | None) -> None:
    assert resolved(target, HOME) == address


@pytest.mark.parametrize("host", ["local", "git.example"])
def test_relative_links_are_dead_where_the_host_is_unknown(host: str) -> None:
    home = Home(host=host, repository="a/b", path="SKILL.md", commit="c" * 40)
    assert resolved("x.md", home) is None
    assert "leads to x.md" in str(render(b"[x](x.md)", home))


@given(st.text(max_size=60))
def test_no_target_leads_out_of_the_web_or_the_repository(target: str) -> None:
    address = resolved(target, HOME)
    prefix = "https://github.com/a/b/blob/" + "c" * 40 + "/"
    assert (
        address is None
        or address.lower().startswith(("https://", "http://", "mailto:"))
        or address.startswith("#md-")
    )
    if address is not None and address.startswith(prefix):
        assert "/../" not in address
