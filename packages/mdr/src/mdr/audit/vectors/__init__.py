"""The published vectors of each ruleset, as data for anybody who wants to recompute grades.

``r1.json`` beside this module is the file to read from other languages; its ``about`` explains it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from mdr.audit.types import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A text and what one check must say about it."""

    id: str
    check: str
    expect: Status
    why: str
    data: bytes


def vectors_of(ruleset: str) -> tuple[Vector, ...]:
    """Return the published vectors of a ruleset.

    Raises:
        FileNotFoundError: the ruleset has none.
    """
    document = json.loads(files(__package__).joinpath(f"{ruleset}.json").read_text("utf-8"))
    frame = document["frame"]
    return tuple(_vector(row, frame) for row in document["vectors"])


def _vector(row: dict[str, Any], frame: str) -> Vector:
    text = _joined(row["text"]) if "text" in row else frame + _joined(row["body"]) + "\n"
    return Vector(
        id=row["id"],
        check=row["check"],
        expect=Status(row["expect"]),
        why=row["why"],
        data=text.encode(),
    )


def _joined(text: Any) -> str:
    if isinstance(text, str):
        return text
    return "".join(
        piece if isinstance(piece, str) else piece["repeat"] * piece["times"] for piece in text
    )
