"""What a file holds that a rendered page would not show, listed with its lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Kind
from mdr.audit.checks.comments import DEFINITION
from mdr.audit.checks.invisible import find as find_invisible
from mdr.audit.checks.markup import find_hidden
from mdr.audit.run import unreadable
from mdr.audit.shown import harmless
from mdr.audit.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PARTS: Final = 100
"""Parts that are listed; pages say when there are more."""
CLOSINGS: Final = {b"<!--": b"-->", b"<?": b"?>", b"<![CDATA[": b"]]>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenPart:
    """One stretch of text that renderers do not show."""

    line: int
    """1-based line of the file."""
    what: str
    shown: str
    """Its beginning, harmless."""


def hidden_parts(data: bytes) -> tuple[HiddenPart, ...]:
    """List comments, invisible characters, hiding styles and link definitions, in file order.

    Args:
        data: The bytes of the file; what is not text has no parts.

    Returns:
        At most :data:`MAX_PARTS` and one more, so that a page can say that there are more.
    """
    if unreadable(data) is not None:
        return ()
    text = Text(data, Kind.SKILL)
    found = sorted(set(_places(text)))[: MAX_PARTS + 1]
    return tuple(
        HiddenPart(line=text.position(start)[0], what=what, shown=harmless(data[start:end]))
        for start, end, what in found
    )


def _places(text: Text) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, what) in offsets of the file."""
    yield from _comments(text)
    for match in DEFINITION.finditer(text.visible.data):
        view = text.visible
        yield view.origin(match.start()), view.origin(match.end() - 1) + 1, "link definition"
    for hit in find_invisible(text):
        yield hit.start, hit.end, hit.why
    for hit in find_hidden(text):
        yield hit.start, hit.end, hit.why


def _comments(text: Text) -> Iterator[tuple[int, int, str]]:
    """Yield comments and their kin outside code; ends are looked for in the whole text."""
    visible, plain = text.visible, text.plain.data
    for opening, closing in CLOSINGS.items():
        position, count = 0, 0
        while (at := visible.data.find(opening, position)) >= 0 and count <= MAX_PARTS:
            found = plain.find(closing, at + len(opening))
            end = len(plain) if found < 0 else found + len(closing)
            what = "HTML comment" if opening == b"<!--" else "hidden declaration"
            yield visible.origin(at), visible.origin(end - 1) + 1, what
            position, count = end, count + 1
