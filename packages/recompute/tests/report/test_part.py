"""A part says the same to a terminal and to a page."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.schema import Assumption
from recompute.report.part import Part, Table, assumption_part, text_of
from recompute.report.text import SHORT, WIDTH


class Cells(HTMLParser):
    """The texts of every cell, row by row, and of everything else."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.text = ""
        self._open = False
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            self.rows[-1][-1] += data


def test_what_is_too_long_for_a_column_stands_below_its_row() -> None:
    table = Table(
        header=("change", "GiB"),
        rows=(("fuse", "-1.00"), ("halve", "-2.00")),
        below=("a.b=true " * 20, ""),
        below_title="override",
        below_is_code=True,
    )
    lines = table.text().splitlines()
    assert lines[0] == "  change    GiB"
    assert lines[1] == "  fuse    -1.00"
    assert lines[2] == "      " + "a.b=true " * 20, "what is pasted is never broken"
    assert lines[3] == "  halve   -2.00"
    cells = Cells(table.markup("levers"))
    assert cells.rows == [
        ["change", "GiB", "override"],
        ["fuse", "-1.00", "a.b=true " * 20],
        ["halve", "-2.00", ""],
    ]
    assert cells.tags.count("code") == 1


def test_prose_below_a_row_is_broken_at_the_width() -> None:
    table = Table(header=("label",), rows=(("mlp",),), below=("word " * 60,), below_title="note")
    below = table.text().splitlines()[2:]
    assert len(below) > 2
    assert all(line.startswith("      word") and len(line) <= WIDTH for line in below)


words = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=12)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5), words)
def test_every_text_arrives_in_both_forms_and_none_as_markup(
    rows: list[tuple[str, str]], said: str
) -> None:
    part = Part(
        title="figures",
        lines=(said,),
        facts=(("name", said),),
        code=(("caption", said),),
        table=Table(header=("first", "second|"), rows=tuple(rows)),
        after=(said,),
    )
    text, cells = part.text(), Cells(part.markup())
    assert cells.rows == [["first", "second"], *([a, b] for a, b in rows)]
    assert text.count(said) >= 4
    assert cells.text.count(said) >= 4
    assert set(cells.tags) <= {
        *("h2", "p", "dl", "dt", "dd", "div", "pre"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }


def test_long_assumptions_are_counted_in_a_terminal_and_written_on_a_page() -> None:
    given_ = [
        Assumption(id="a", text="short"),
        Assumption(id="b", text="x" * (SHORT + 1)),
        Assumption(id="a", text="short"),
    ]
    short = assumption_part(given_, whole=False)
    whole = assumption_part(given_, whole=True)
    assert short is not None
    assert whole is not None
    assert short.points == ("short", "1 longer one; --json has the text")
    assert whole.points == ("short", "x" * (SHORT + 1))
    assert assumption_part([], whole=True) is None


@pytest.mark.parametrize("missing", [None, Part(lines=("b",))])
def test_parts_have_an_empty_line_between_them(missing: Part | None) -> None:
    shown = text_of((Part(lines=("a",)), missing, Part(title="c", points=("d",))))
    assert shown == ("a\n\nb\n\nc\n  - d" if missing else "a\n\nc\n  - d")
