# ruff: noqa: S314 - what is parsed here was written by the code under test
from __future__ import annotations

import difflib
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from mdr.registry.lines import FileChange, unified_lines
from mdr.version.types import FileEntry, FileMode
from mdr.web.diffs import table_of
from mdr.web.excerpt import LENGTH, excerpt
from mdr.web.hidden import hidden_parts
from mdr.web.lines import MAX_LINES, lines_of
from mdr.web.pages import cut
from mdr.web.pictures import pictures_of
from mdr.web.unseen import shown

TAG = re.compile(r"<[^>]*>")


def text_of(html: Markup) -> str:
    return Markup(TAG.sub("", html)).unescape()  # noqa: S704 - read back, never shown


@given(st.text())
def test_shown_text_is_the_text_with_code_points_for_what_draws_nothing(text: str) -> None:
    html = shown(text)
    assert "<script" not in html
    assert set(TAG.findall(html)) <= {"</span>"} | {
        each for each in TAG.findall(html) if each.startswith('<span class="unseen" title="')
    }
    if text.isascii() and text.isprintable():
        assert html.unescape() == text
    assert not set("\u200b\u202e\u2066\u00ad\x1b\x00") & set(html)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\u200bb", "aU+200Bb"),
        ("\U000e0041", "U+E0041"),
        ('<&">', '<&">'),
        ("\x1b[0m", "U+001B[0m"),
    ],
)
def test_unseen_characters_are_drawn(text: str, words: str) -> None:
    assert text_of(shown(text)) == words


@given(st.text(alphabet="ab .!?\n<-", max_size=4_000))
def test_an_excerpt_is_the_beginning_of_the_collapsed_text(text: str) -> None:
    found = excerpt(text.encode())
    flat = " ".join(text.split())
    assert len(found) <= LENGTH + 2
    if found.endswith(" \u2026"):
        assert len(flat) > LENGTH
        assert flat.startswith(found[:-2])
    else:
        assert found == flat


def test_an_excerpt_ends_with_a_sentence_where_one_ends_late_enough() -> None:
    sentence = "A sentence of words. "
    assert excerpt((sentence * 100).encode()).endswith("words. \u2026")
    assert excerpt(("Short. " + "word " * 400).encode()).endswith("word \u2026")
    assert excerpt(b"---\nname: x\n---\n<!-- kept -->\nbody") == "<!-- kept --> body"
    assert excerpt(b"\xff\xfe") == ""


LINES = st.lists(
    st.sampled_from(["a", "b c", "--- x", "+++ y", "@@ -1 +1 @@", "", "- x", "+ y"]), max_size=12
)


@settings(max_examples=300)
@given(LINES, LINES)
def test_the_rows_of_a_diff_are_both_files_again(before: list[str], after: list[str]) -> None:
    one, two = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    unified = "".join(
        difflib.unified_diff(
            one.splitlines(keepends=True), two.splitlines(keepends=True), "f", "f", "x", "y", n=100
        )
    )
    rows = table_of(unified).rows
    if one != two:
        assert [each.text for each in rows if each.before is not None] == before
        assert [each.text for each in rows if each.after is not None] == after
        assert [each.before for each in rows if each.before] == list(range(1, len(before) + 1))
        assert [each.after for each in rows if each.after] == list(range(1, len(after) + 1))
    for row in rows:
        assert text_of(row.html) == row.text


def test_a_diff_of_several_files_keeps_its_notes_apart() -> None:
    def entry(path: str, digest: str) -> FileEntry:
        return FileEntry(path=path, mode=FileMode.REGULAR, size=1, sha256=digest)  # type: ignore[arg-type]

    blobs = {"1": b"a\n", "2": b"b\n", "3": b"\0", "4": b"\0\0"}
    unified = "".join(
        unified_lines(
            FileChange(
                path=path, change="changed", before=entry(path, one), after=entry(path, two)
            ),
            blobs.get,  # type: ignore[arg-type]
            ("x", "y"),
        )
        for path, one, two in (("a.md", "1", "2"), ("b.bin", "3", "4"), ("c.md", "2", "1"))
    )
    kinds = [row.kind for row in table_of(unified).rows]
    assert kinds == [
        "file",
        "file",
        "hunk",
        "removed",
        "added",
        "note",
        "file",
        "file",
        "hunk",
        "removed",
        "added",
    ]


@given(
    st.lists(st.text(alphabet="ab\u200b<\t ", max_size=8), max_size=20),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_lines_are_counted_as_the_audit_counts_them(rows: list[str], end: str) -> None:
    from mdr.artifact.types import Kind
    from mdr.audit.text import Text

    data = "".join(row + end for row in rows).encode()
    found = lines_of(data, {}).lines
    assert len(found) == len(rows)
    text = Text(data, Kind.SKILL)
    offset = 0
    for line, row in zip(found, rows, strict=True):
        assert text.position(offset)[0] == line.number
        offset += len((row + end).encode())


def test_long_files_are_cut_and_say_so() -> None:
    assert lines_of(b"x\n" * (MAX_LINES + 1), {}).cut
    assert not lines_of(b"x\n" * MAX_LINES, {}).cut
    assert lines_of(b"a\r\nb\n", {}).ends == "mixed line ends"
    assert lines_of(b"a" * 9_000, {}).lines[0].cut


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("a\n<!-- b -->\n", "HTML comment", 2),
        ("`<!-- code -->`\n\n<!-- b", "HTML comment", 3),
        ("a\n\n[//]: # (b)\n", "link definition", 3),
        ("a\nb\u200b\n", "zero-width character U+200B", 2),
        ("a\n<p style='display:none'>b</p>", "an inline style hides text: display none", 2),
        ("<?x b ?>", "hidden declaration", 1),
    ],
)
def test_hidden_parts_are_listed_with_their_lines(text: str, what: str, line: int) -> None:
    found = hidden_parts(text.encode())
    assert [(part.what, part.line) for part in found] == [(what, line)]


def test_what_is_plain_has_no_hidden_parts() -> None:
    assert hidden_parts(b"# a\n\n```\n<!-- shown as code -->\n```\n") == ()
    assert hidden_parts(b"\xff") == ()


def version(day: int, grade: str | None, size: int) -> dict[str, object]:
    return {
        "label": f"git:202601{day:02}.abcdef0",
        "committed": f"2026-01-{day:02}T00:00:00Z",
        "grade": grade,
        "size": size,
    }


@given(
    st.lists(
        st.tuples(
            st.integers(1, 28),
            st.sampled_from(["A", "B", "C", "D", "F", None]),
            st.integers(0, 10**7),
        ),
        max_size=30,
    )
)
def test_pictures_are_well_formed_and_inside_their_frame(
    rows: list[tuple[int, str | None, int]],
) -> None:
    pictures = pictures_of([version(*row) for row in rows])
    assert len(pictures) == (0 if len(rows) < 2 else 2)
    for picture in pictures:
        root = ET.fromstring(picture.svg)
        assert root.attrib["role"] == "img"
        assert picture.words in root.attrib["aria-label"]
        width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
        for circle in root.iter("circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width
            assert 0 <= float(circle.attrib["cy"]) <= height
        assert "style" not in picture.svg


def test_a_picture_says_in_words_what_it_draws() -> None:
    grades, sizes = pictures_of([version(9, "B", 300), version(5, "A", 100), version(2, "A", 200)])
    assert (
        grades.words
        == "3 versions from 2026-01-02 to 2026-01-09: 2 graded A, 1 graded B. The newest is B."
    )
    assert (
        sizes.words == "The file grew from 200 to 300 bytes over 3 versions; the largest had 300."
    )


@given(st.text(max_size=600), st.integers(10, 100))
def test_a_cut_text_is_no_longer_than_asked(text: str, length: int) -> None:
    assert len(cut(text, length)) <= length + 2
