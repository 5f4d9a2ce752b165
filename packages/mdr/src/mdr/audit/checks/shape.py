"""Checks 1 to 4: frontmatter, its name and description, and the size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Kind
from mdr.audit.checks.row import Check, Hit
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text

MIN_BYTES: Final = 200
MAX_BYTES: Final = 200_000
"""KB is 1,000 bytes here; both bounds pass."""

READABLE: Final = {
    key: Rx(rb"(?m)^" + key.encode() + rb"[ \t]*:[ \t]*[\"']?[^\s\"']")
    for key in ("name", "description")
}
"""A key that a lenient reader finds in a block that is not valid YAML."""


def find_frontmatter(text: Text) -> Iterator[Hit]:
    """Fail when the block is missing, unclosed, or not a YAML mapping."""
    problem = text.frontmatter.problem
    if problem is not None:
        start = _line_start(text, problem.line)
        end = text.source.find(b"\n", start)
        yield Hit(start, end if end >= 0 else len(text.source), Status.FAIL, problem.message)


def find_name(text: Text) -> Iterator[Hit]:
    """Fail when ``name`` is missing, empty or not a string."""
    yield from _find_key(text, "name")


def find_description(text: Text) -> Iterator[Hit]:
    """Fail when ``description`` is missing, blank or not a string."""
    yield from _find_key(text, "description")


def find_size(text: Text) -> Iterator[Hit]:
    """Fail outside 200 to 200,000 bytes."""
    size = len(text.source)
    if size < MIN_BYTES:
        yield Hit(0, 0, Status.FAIL, f"{size} bytes: too short to guide an agent")
    elif size > MAX_BYTES:
        yield Hit(0, 0, Status.FAIL, f"{size} bytes: too long for an agent to read whole")


def needs_frontmatter(text: Text) -> bool:
    """Say whether check 1 applies: to a skill always, to other kinds when they have a block."""
    return text.kind is Kind.SKILL or text.frontmatter.present


def needs_name(text: Text) -> bool:
    """Say whether check 2 applies: to a skill always, to other kinds when they have the key."""
    return _needs_key(text, "name")


def needs_description(text: Text) -> bool:
    """Say whether check 3 applies: to a skill always, to other kinds when they have the key."""
    return _needs_key(text, "description")


def _needs_key(text: Text, key: str) -> bool:
    return text.kind is Kind.SKILL or key in (text.frontmatter.values or {})


def _find_key(text: Text, key: str) -> Iterator[Hit]:
    block = text.frontmatter
    start = text.plain.origin(block.start)
    if not block.present:
        yield Hit(0, 0, Status.FAIL, f"no frontmatter, so no {key}")
    elif block.values is None:
        yaml = text.plain.data[block.start : block.end]
        if READABLE[key].search(yaml) is None:
            yield Hit(
                start, start, Status.FAIL, f"the frontmatter is not readable and shows no {key}"
            )
    elif key not in block.values:
        yield Hit(start, start, Status.FAIL, f"the frontmatter has no {key}")
    elif block.text(key) is None:
        value = block.values[key]
        what = (
            "blank"
            if isinstance(value, str) or value is None
            else f"a {type(value).__name__}, not text"
        )
        yield Hit(start, start, Status.FAIL, f"{key} is {what}")


def _line_start(text: Text, line: int) -> int:
    offset = 0
    for _ in range(line - 1):
        feed = text.plain.data.find(b"\n", offset)
        if feed < 0:
            break
        offset = feed + 1
    return text.plain.origin(offset)


FRONTMATTER: Final = Check(
    id="frontmatter",
    title="Frontmatter block present",
    severity=Severity.LOW,
    find=find_frontmatter,
    applies=needs_frontmatter,
)
NAME: Final = Check(
    id="name",
    title="Frontmatter declares a name",
    severity=Severity.LOW,
    find=find_name,
    applies=needs_name,
)
DESCRIPTION: Final = Check(
    id="description",
    title="Frontmatter declares a description",
    severity=Severity.LOW,
    find=find_description,
    applies=needs_description,
)
SIZE: Final = Check(
    id="size",
    title="Size between 200 bytes and 200 KB",
    severity=Severity.LOW,
    find=find_size,
    detail=lambda text: f"{len(text.source)} bytes",
)
