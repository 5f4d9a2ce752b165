"""The license that a file claims for itself, for where its host states none."""

from __future__ import annotations

from typing import Final

from mdr.artifact.frontmatter import read_frontmatter

MAX_CHARS: Final = 100
"""A longer value is prose, not the name of a license."""


def declared_license(data: bytes) -> str | None:
    """Return the ``license`` of the frontmatter (agentskills.io specification, field ``license``).

    Args:
        data: The named file.

    Returns:
        One printable line, or ``None`` when there is no such text. It is the author's word; nobody
        checked it.
    """
    text = (read_frontmatter(data).text("license") or "").strip()
    return text if text and text.isprintable() and len(text) <= MAX_CHARS else None
