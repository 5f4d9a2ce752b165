"""Check 5: characters that change what is read and cannot be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, span
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status
from mdr.audit.unicode import EMOJI, INVISIBLE, JOINING, KEYCAP, TONES, char_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text

_UNSEEN: Final = char_class(INVISIBLE)
_EMOJI: Final = char_class(EMOJI)
_JOINING: Final = char_class(JOINING)
_SYMBOL: Final = _EMOJI + char_class(
    ((0x2010, 0x2027), (0x2030, 0x205E), (0xA1, 0xAC), (0xAE, 0xBF)), also=KEYCAP + "!?\ufffd"
)
_TONE: Final = char_class((TONES,))

SOUND: Final = Rx(
    (
        rf"(?:[^{_UNSEEN}]"
        rf"|[{_SYMBOL}][\x{{fe0e}}\x{{fe0f}}]"
        rf"|(?:[{_EMOJI}][{_TONE}\x{{fe0f}}]*\x{{200d}})+[{_EMOJI}]\x{{fe0f}}?"
        rf"|(?:[{_JOINING}][\x{{200c}}\x{{200d}}])+(?:[{_JOINING}]|\s)"
        r"|[\x{1800}-\x{180a}\x{1810}-\x{18af}][\x{180b}-\x{180f}]"
        r"|\x{1f3f4}[\x{e0030}-\x{e0039}\x{e0061}-\x{e007a}]{2,6}\x{e007f}"
        r")*"
    ).encode(),
    utf8=True,
    longest=True,
)
"""The longest stretch without a suspicious character. Sound are: emoji variation selectors, joined
emoji, joiners inside scripts that spell with them, Mongolian selectors, flags of regions."""
RUN: Final = Rx(f"[{_UNSEEN}]+".encode(), utf8=True)
CRITICAL: Final = Rx(rb"[\x{e0000}-\x{e007f}\x{202a}-\x{202e}\x{2066}-\x{2069}]", utf8=True)
"""Tag characters and bidirectional overrides and isolates: invisible text, or text shown in an
order in which it is not read."""

_HARMLESS_ASCII: Final = bytes(range(0x20, 0x7F)) + b"\t\n"
ENOUGH: Final = 40
"""Runs described one by one; after these only a critical one can still change the status."""

NAMES: Final = (
    ((0xE0000, 0xE007F), "tag character"),
    ((0xE0100, 0xE01EF), "variation selector supplement"),
    ((0xFE00, 0xFE0F), "variation selector outside an emoji"),
    ((0x202A, 0x202E), "bidirectional override"),
    ((0x2066, 0x2069), "bidirectional isolate"),
    ((0x200E, 0x200F), "direction mark"),
    ((0x200B, 0x200D), "zero-width character"),
    ((0x2060, 0x2064), "zero-width character"),
    ((0xFEFF, 0xFEFF), "zero-width no-break space (byte order mark) inside the text"),
    ((0xAD, 0xAD), "soft hyphen"),
    ((0x115F, 0x1160), "Hangul filler"),
    ((0x3164, 0x3164), "Hangul filler"),
    ((0xFFA0, 0xFFA0), "Hangul filler"),
    ((0x1B, 0x1B), "terminal escape"),
    ((0x80, 0x9F), "C1 control; often text that was encoded twice (mojibake)"),
    ((0x00, 0x7F), "control character"),
)


def find(text: Text) -> Iterator[Hit]:
    """Find runs of invisible characters outside the places where spelling needs them."""
    view = text.plain
    data = view.data
    if data.isascii() and not data.translate(None, _HARMLESS_ASCII):
        return
    position, found = 0, 0
    while True:
        sound = SOUND.match(data, position)
        position = sound.end() if sound else position
        run = RUN.match(data, position)
        if run is None:
            return
        characters = data[run.start() : run.end()].decode()
        critical = CRITICAL.search(data, run.start(), run.end()) is not None
        status = Status.CRIT if critical else Status.FAIL
        yield span(view, run.start(), run.end(), status, describe(characters))
        position, found = run.end(), found + 1
        if found >= ENOUGH:
            rest = CRITICAL.search(data, position)
            if rest is None or critical:
                return
            position = max(position, rest.start())


def describe(characters: str) -> str:
    """Say what a run is, and what text it hides."""
    code = ord(characters[0])
    name = next((name for (low, high), name in NAMES if low <= code <= high), "invisible character")
    hidden = hidden_text(characters)
    count = f", {len(characters)} in a row" if len(characters) > 1 else ""
    return f"{name} U+{code:04X}{count}" + (f"; they spell {hidden!r}" if hidden else "")


def hidden_text(characters: str) -> str:
    """Decode text that is spelled in tag characters or in variation selectors."""
    tags = "".join(chr(ord(c) - 0xE0000) for c in characters if 0xE0020 <= ord(c) <= 0xE007E)
    if tags:
        return tags[:80]
    data = bytes(
        ord(c) - 0xFE00 if ord(c) < 0xE0000 else ord(c) - 0xE0100 + 16
        for c in characters
        if 0xFE00 <= ord(c) <= 0xFE0F or 0xE0100 <= ord(c) <= 0xE01EF
    )
    plain = data.decode("ascii", "ignore")
    return "".join(c for c in plain if c.isprintable())[:80] if len(data) > 3 else ""


INVISIBLE_CHARACTERS: Final = Check(
    id="invisible",
    title="No zero-width or bidi control characters",
    severity=Severity.HIGH,
    worst=Status.CRIT,
    find=find,
)
