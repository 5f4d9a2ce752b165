"""Words of strangers on a terminal: one way to write them, in which nothing acts and nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.cli.options import harmless
from mdr.cli.update import printable


@given(st.text())
def test_nothing_acts_on_a_terminal_and_words_stay(text: str) -> None:
    shown = harmless(text)
    assert shown.isprintable()
    assert "".join(each for each in text if each.isprintable()) == shown or not text.isprintable()
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize("char", ["\x1b", "\u202e", "\u200b", "\r", "\x9b", "\udcff", "\U000e0041"])
def test_a_character_that_acts_is_its_escape(char: str) -> None:
    assert re.fullmatch(r"a\\[a-zU0-9]+b", harmless(f"a{char}b"))
    assert printable(f"a{char}\tb") == harmless(f"a{char}") + "\tb"
