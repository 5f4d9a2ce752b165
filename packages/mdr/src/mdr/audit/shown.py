"""Bytes of a hostile file, made safe to print on a terminal, in a log and on a page.

Only printable ASCII and letters of a few scripts that cannot pass for ASCII are shown as they are; all
else becomes ``<U+XXXX>``. Long stretches are cut and say so. Credentials keep their first characters.
"""

from __future__ import annotations

from typing import Final

from mdr.audit.unicode import within

MAX_SHOWN_CHARS: Final = 100
SECRET_HEAD: Final = 4
SHOWN_AS_IS: Final = (
    (0x20, 0x7E), (0xC0, 0x17F), (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
)  # fmt: skip
"""ASCII, accented Latin, kana, common Han, Hangul."""
ESCAPES: Final = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


def harmless(data: bytes, *, secret: bool = False) -> str:
    """Return a short, harmless rendering.

    Args:
        data: The matched bytes.
        secret: Mask all but the first characters.
    """
    if secret:
        return _masked(data)
    text = data[: 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")
    pieces = [_safe(char) for char in text[:MAX_SHOWN_CHARS]]
    kept = len(text[:MAX_SHOWN_CHARS].encode())
    rest = f"... ({len(data)} bytes)" if kept < len(data) else ""
    return mask_secrets("".join(pieces)) + rest


def _safe(char: str) -> str:
    code = ord(char)
    if code in ESCAPES:
        return ESCAPES[code]
    return char if within(code, SHOWN_AS_IS) else f"<U+{code:04X}>"


def _masked(data: bytes) -> str:
    head = "".join(_safe(char) for char in data[:SECRET_HEAD].decode("ascii", "replace"))
    return f"{head}... ({len(data)} bytes, masked)"


def mask_secrets(shown: str) -> str:
    """Mask credential shapes inside text that another check shows."""
    from mdr.audit.checks.credentials import DSN, any_provider

    data = shown.encode()
    for pattern in (any_provider(), DSN):
        pieces, done = [], 0
        for match in pattern.finditer(data):
            pieces += [data[done : match.start()], _masked(match.group() or b"").encode()]
            done = match.end()
        data = b"".join((*pieces, data[done:]))
    return data.decode()
