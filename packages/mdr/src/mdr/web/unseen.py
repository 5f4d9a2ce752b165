"""Characters that draw nothing, drawn: text as HTML in which no character is invisible.

What counts as sound (emoji selectors, joiners of scripts that spell with them) is what the audit's fifth
check counts as sound, by the same patterns, so that page and audit cannot disagree.
"""

from __future__ import annotations

from html import escape
from typing import Final

from markupsafe import Markup

from mdr.audit.checks.invisible import RUN, SOUND, describe

_PLAIN: Final = bytes(range(0x20, 0x7F)) + b"\t\n"
MAX_DRAWN: Final = 24
"""Characters of one run that are drawn one by one; the rest is counted."""


def shown(text: str) -> Markup:
    """Escape text for HTML and draw every invisible character as its code point.

    Args:
        text: Any text; what cannot be encoded is shown as a question mark.
    """
    data = text.encode("utf-8", "replace")
    if data.isascii() and not data.translate(None, _PLAIN):
        return Markup(escape(text))  # noqa: S704 - escaped here
    pieces: list[str] = []
    position = 0
    while position < len(data):
        sound = SOUND.match(data, position)
        end = sound.end() if sound else position
        pieces.append(escape(data[position:end].decode("utf-8", "replace")))
        run = RUN.match(data, end)
        if run is None:
            if end <= position:  # neither sound nor unseen: cannot be, and must not loop
                pieces.append(escape(data[position:].decode("utf-8", "replace")))
                break
            position = end
            continue
        pieces.append(_drawn(data[run.start() : run.end()].decode("utf-8", "replace")))
        position = run.end()
    return Markup("".join(pieces))  # noqa: S704 - every piece was escaped


def _drawn(run: str) -> str:
    points = " ".join(f"U+{ord(char):04X}" for char in run[:MAX_DRAWN])
    rest = f" and {len(run) - MAX_DRAWN:,} more" if len(run) > MAX_DRAWN else ""
    return f'<span class="unseen" title="{escape(describe(run))}">{points}{rest}</span>'
