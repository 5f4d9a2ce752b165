"""A badge: name and grade as a small SVG that any page can embed.

The width of the text is the sum of measured advances, so that the frame fits before any font is known;
``textLength`` then makes every font fill exactly that width.
"""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from mdr.web.glyphs import ADVANCES, OTHER, WIDE

COLORS: Final = {
    "A": "#1a7f4b",
    "B": "#4c7a12",
    "C": "#8a6100",
    "D": "#b4540a",
    "F": "#b3261e",
}
"""White text on each has a contrast of 4.5 or more."""
GREY: Final = "#5b6068"
DARK: Final = "#32363d"
MAX_NAME: Final = 48
"""Characters of a name that are shown."""
PADDING: Final = 7
HEIGHT: Final = 20


def badge(name: str, grade: str | None) -> str:
    """Draw the badge of an artifact.

    Args:
        name: Display name; hostile text is escaped, and what XML cannot hold is replaced.
        grade: A to F, ``None`` when it is not known.
    """
    return _draw(name, f"audit {grade or '?'}", COLORS.get(grade or "", GREY))


def notice(name: str, words: str) -> str:
    """Draw a grey badge that says why there is no grade: ``not found``, ``withdrawn``."""
    return _draw(name, words, GREY)


def text_width(text: str) -> int:
    """Return the width of a text in pixels at 11 px, rounded up."""
    total = sum(ADVANCES.get(char) or (WIDE if ord(char) >= 0x1100 else OTHER) for char in text)
    return -(-total // 100)


def _draw(left: str, right: str, color: str) -> str:
    left = _short(_clean(left))
    one, two = text_width(left), text_width(right)
    first, second = one + 2 * PADDING, two + 2 * PADDING
    total = first + second
    words = escape(f"{left}: {right}", {'"': "&quot;"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{HEIGHT}" role="img" '
        f'aria-label="{words}"><title>{words}</title>'
        f'<clipPath id="r"><rect width="{total}" height="{HEIGHT}" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{first}" height="{HEIGHT}" fill="{DARK}"/>'
        f'<rect x="{first}" width="{second}" height="{HEIGHT}" fill="{color}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">'
        f'<text x="{PADDING}" y="14" textLength="{one}">{escape(left)}</text>'
        f'<text x="{first + PADDING}" y="14" textLength="{two}">{escape(right)}</text></g></svg>\n'
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "\u2026"


def _clean(text: str) -> str:
    """Replace what XML 1.0 cannot hold, and controls that would reorder the text around them."""
    return "".join(
        char if char.isprintable() and not 0xD800 <= ord(char) <= 0xDFFF else "\ufffd"
        for char in text
    )
