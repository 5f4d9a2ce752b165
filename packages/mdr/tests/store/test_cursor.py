"""Cursors: what one writes the other reads, and whatever else comes is refused."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.store.cursor import bad_cursor, read_cursor, write_cursor

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_is_written_is_read_back_and_fits_into_an_address(words: dict[str, object]) -> None:
    text = write_cursor(words)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert read_cursor(text) == words


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_other_text_is_a_value_error_or_some_json(text: str) -> None:
    try:
        found = read_cursor(text)
    except ValueError:
        return
    assert found is None or isinstance(found, bool | int | float | str | list | dict)


@pytest.mark.parametrize("text", ["", "e", "ä", "{}", base64.b64encode(b"[" * 100_000).decode()])
def test_no_cursor(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_cursor(text)


def test_the_refusal_says_what_to_pass_again() -> None:
    error = bad_cursor("search", along=", with the same words")
    assert error.code == "bad-cursor"
    assert error.message == "the cursor is not one that this search gave"
    assert error.hint.endswith("pass next_cursor as it is, with the same words")
