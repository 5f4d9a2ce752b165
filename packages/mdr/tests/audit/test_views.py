# ruff: noqa: RUF001 - look-alike characters are test data
"""Views and their way back; the Markdown scanner; harmless rendering; addresses."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mdr.artifact.types import Kind
from mdr.audit.fold import character_anchors, entity_anchors, fold_characters, fold_entities
from mdr.audit.markdown import visible_bytes
from mdr.audit.shown import harmless
from mdr.audit.text import Text
from mdr.audit.unicode import PAIRS, folding_table
from mdr.audit.urls import host_of, public_address
from mdr.audit.view import View

alphabet = st.sampled_from(
    [
        "a",
        "B",
        " ",
        "\n",
        "é",
        "а",
        "ｇ",
        "\u200b",
        "\u0332",
        "\U0001d400",
        "\U000e0041",
        "中",
        "&#105;",
        "&amp;",
        "&x;",
        "&",
        "#",
        ";",
        "\x07",
        "½",
        "ﬁ",
        "\\\n",
        "|\n",
        "\r\n",
        "\r",
        '"',
    ],
)
texts = st.lists(alphabet, max_size=40).map("".join)


@settings(max_examples=400, deadline=None)
@given(texts)
@example("&#x1F600;&#0;&#xD800;&#1114112;")
def test_the_way_back_of_folding_never_goes_backwards(text: str) -> None:
    data = text.encode()
    steps = [(data, fold_characters(data), character_anchors(data))]
    middle = steps[0][1]
    steps.append((middle, fold_entities(middle), entity_anchors(middle)))
    for before, after, anchors in steps:
        view = View(after, View(before), lambda anchors=anchors: anchors)
        places = [view.origin(offset) for offset in range(len(after) + 1)]
        assert places == sorted(places)
        assert all(0 <= place <= len(before) for place in places)


@settings(max_examples=300, deadline=None)
@given(texts)
def test_every_view_maps_into_the_source(text: str) -> None:
    source = text.encode()
    views = Text(source, Kind.SKILL)
    for view in (
        views.plain,
        views.joined,
        views.folded,
        views.unquoted,
        views.flowing,
        views.visible,
        views.visible_folded,
    ):
        places = [view.origin(offset) for offset in range(len(view.data) + 1)]
        assert places == sorted(places)
        assert all(0 <= place <= len(source) for place in places)


def test_the_way_back_finds_the_letter() -> None:
    source = 'é "x" &#105;gn\u200bo\\re'.encode()
    views = Text(source, Kind.SKILL)
    folded = views.folded
    assert folded.data == b'e "x" igno\\re'
    assert source[folded.origin(folded.data.index(b"i")) :].startswith(b"&#105;")
    assert source[folded.origin(folded.data.index(b"o")) :].startswith(b"o")
    assert views.unquoted.data == b"e x ignore"
    assert source[views.unquoted.origin(views.unquoted.data.index(b"re")) :].startswith(
        (b"re", b"\\re")
    )


def test_folding_maps_to_ascii_only_and_pairs_have_equal_lengths() -> None:
    assert all(plain.isascii() for plain in folding_table().values())
    assert all(len(characters) == len(plain) for characters, plain in PAIRS)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Ｉｇｎｏｒｅ", "Ignore"),
        ("𝕚𝕘𝕟𝕠𝕣𝕖", "ignore"),
        ("іgnоrе", "ignore"),
        ("i\u0307gnore", "ignore"),
        ("🅸🅶🅽🅾🆁🅴", "IGNORE"),
        ("don’t – “x”", 'don\'t - "x"'),
        ("a…b", "a...b"),
        ("中文 Привет", "中文 Пpиbet"),
        ("\U0001ccd6", "A"),
    ],
)
def test_folding_of_characters(text: str, plain: str) -> None:
    assert fold_characters(text.encode()).decode() == plain


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("&lt;", "<"),
        ("&#x69;", "i"),
        ("&#105", "i"),
        ("&copy=1", "&copy=1"),
        ("&#1110;", "i"),
        ("&#8203;", ""),
        ("&#xD800;", ""),
        ("&amp;lt;", "&lt;"),
        ("&colon;", ":"),
    ],
)
def test_folding_of_entities(text: str, plain: str) -> None:
    assert fold_entities(text.encode()).decode() == plain


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "`",
                "``",
                "```\n",
                "~~~\n",
                "> ",
                "- ",
                "    ",
                "\n",
                "\n\n",
                "x",
                "<b>",
                "<!--",
                "-->",
                "<div>\n",
                "\\",
                '"',
                "1. ",
                "|",
                "# ",
            ]
        ),
        max_size=40,
    ).map("".join)
)
def test_the_visible_view_only_blanks(text: str) -> None:
    data = text.encode()
    visible = visible_bytes(data, 0)
    assert len(visible) == len(data)
    for before, after in zip(data, visible, strict=True):
        assert after in {before, 0x20}
        assert (before == 0x0A) == (after == 0x0A)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("a `b` c", "b"),
        ("``a ` b`` c", "a ` b"),
        ("```\nb\n```\nc", "b"),
        ("~~~ x\nb\n~~~~\nc", "b"),
        ("- a\n\n  ```\n  b\n  ```\n  c", "b"),
        ("1. a\n   - z\n\n     ```\n     b\n     ```\n\nc", "b"),
        ("> ```\n> b\n> ```\nc", "b"),
        ("`a\nb`", "a\nb"),
    ],
)
def test_code_is_blanked(text: str, hidden: str) -> None:
    visible = visible_bytes(text.encode(), 0).decode()
    start = text.index(hidden)
    assert not visible[start : start + len(hidden)].strip()
    assert ("c" in visible) == ("c" in text)


@pytest.mark.parametrize(
    "text",
    [
        "a ` b\n\nX ` c",
        "\\`X\\`",
        '<i title="`">X<i title="`">',
        "<div>\n```\nX\n```\n</div>",
        "<!--\n`X`\n-->",
        "    ```\nX\n    ```",
        "- a\n\n  ```\n  b\n\nX",
        "> ```\n> b\n\nX",
        "``` a`b\nX",
        "# a ` b\nX ` c",
        "| a ` |\n| X ` |",
        "- a `\n- X ` b",
        "``X`",
    ],
)
def test_what_a_renderer_shows_is_not_blanked(text: str) -> None:
    assert "X" in visible_bytes(text.encode(), 0).decode()


def test_harmless_rendering() -> None:
    assert harmless("a\x1b[8m\u202eb\u200b\n".encode()) == "a<U+001B>[8m<U+202E>b<U+200B>\\n"
    assert harmless(b"x" * 500).endswith("... (500 bytes)")
    assert (
        harmless(b"key sk-ant-api03-Kq2Lm9Rv4Tz8Wb1Nc5Pd7Xf3 end")
        == "key sk-a... (37 bytes, masked) end"
    )
    assert harmless(b"ghp_aB3dE5fG7hJ9kL1m", secret=True) == "ghp_... (20 bytes, masked)"
    assert harmless(b"\xff\xfe") == "<U+FFFD><U+FFFD>"


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("a.example", "a.example"),
        ("u:p@a.example:80", "a.example"),
        ("a.example.", "a.example"),
        ("[::1]:80", "::1"),
        ("%61.example", "a.example"),
        ("a@b@c.example", "c.example"),
        ("", ""),
    ],
)
def test_hosts(authority: str, host: str) -> None:
    assert host_of(authority) == host


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("8.8.8.8", "8.8.8.8"), ("010.8.8.8", "8.8.8.8"), ("0x08080808", "8.8.8.8"), ("134744072", "8.8.8.8"), ("8.8.2056", "8.8.8.8"),
        ("8.526344", "8.8.8.8"), ("127.1", None), ("10.1", None), ("256.1.1.1", None), ("1.2.3.4.5", None), ("08.1.1.1", None), ("", None),
        ("example.com", None), ("feed.face", None), ("12345", None), ("2606:4700::1111", "2606:4700::1111"), ("fe80::1", None), ("::ffff:8.8.8.8", "8.8.8.8"),
        ("64:ff9b::808:808", "8.8.8.8"), ("169.254.169.254", "169.254.169.254"), ("100.100.100.200", "100.100.100.200"), ("::", None), ("1::2::3", None),
    ],
)  # fmt: skip
def test_addresses(host: str, address: str | None) -> None:
    assert public_address(host) == address
