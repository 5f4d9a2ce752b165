"""The beginning of a file as running text: no frontmatter, comments kept, white space collapsed."""

from __future__ import annotations

from typing import Final

from mdr.artifact.frontmatter import read_frontmatter
from mdr.audit.run import unreadable

LENGTH: Final = 1_200
"""Characters at most; the excerpt ends with the last whole sentence within them."""
SHORTEST: Final = LENGTH // 2
"""A sentence that ends earlier than this is passed over for the last whole word."""
ENDS: Final = (". ", "! ", "? ")


def excerpt(data: bytes) -> str:
    """Return what a file says first.

    Args:
        data: The bytes of the file.

    Returns:
        At most 1,200 characters and an ellipsis; ``""`` for bytes that are not text.
    """
    if unreadable(data) is not None:
        return ""
    body = data[read_frontmatter(data).body :]
    text = " ".join(body[: 8 * LENGTH].decode("utf-8", "ignore").split())
    if len(text) <= LENGTH:
        return text
    cut = text[: LENGTH + 1]
    sentence = max(cut.rfind(end) for end in ENDS) + 1
    word = cut.rfind(" ")
    end = sentence if sentence >= SHORTEST else word if word > 0 else LENGTH
    return f"{cut[:end].rstrip()} \u2026"
