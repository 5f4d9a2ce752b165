"""Check 15: long base64, which can carry what no text check can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit.checks.credentials import entropy
from mdr.audit.checks.row import Check, Hit, span
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text

MAX_CHARS: Final = 200
MIN_DISTINCT: Final = 20
MIN_ENTROPY: Final = 4.6
"""Bits a character: random base64 of 200 characters has about 5.7, a path or slug below 4.5."""
MIN_PIECE: Final = 24
"""A blob has a stretch this long without a hyphen, underscore or slash; paths and slugs have not."""
LINE_ENTROPY: Final = 5.2
"""For blobs wrapped into short lines, so that a list of words on lines of their own is not one."""

ALPHABET: Final = rb"[A-Za-z0-9+/_-]"
JOINT: Final = rb"(?:[\"'`]?[ \t]*[+,.\\&]?[ \t]*\n?[ \t>#*/]*[\"'`]?)"
BLOB: Final = Rx(
    ALPHABET
    + rb"{40,}={0,2}(?:"
    + JOINT
    + ALPHABET
    + rb"{40,}={0,2})*(?:"
    + JOINT
    + ALPHABET
    + rb"{4,}={0,2})?"
)
"""Runs of 40 and more, joined over line ends and string literals; the last may be short."""
SHORT_LINES: Final = Rx(
    rb"(?m)^(?:[ \t>#*/]*[\"'`]?"
    + ALPHABET
    + rb"{8,39}={0,2}[\"'`]?[ \t]*[+,.\\&]?[ \t]*(?:\n|$)){6,}"
)
"""Six and more lines that hold nothing but 8 to 39 characters of the alphabet."""
_NOT_ALPHABET: Final = bytes(
    code for code in range(256) if not (chr(code).isalnum() and code < 0x80) and code not in b"+/_-"
)
_PIECE: Final = Rx(rb"[A-Za-z0-9+]{" + str(MIN_PIECE).encode() + rb",}")
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


def find(text: Text) -> Iterator[Hit]:
    """Find base64 and base64url of more than 200 characters, also wrapped or split into strings."""
    view = text.folded
    data = view.data
    for match in BLOB.finditer(data):
        blob = (match.group() or b"").translate(None, _NOT_ALPHABET)
        if is_blob(blob, MIN_ENTROPY):
            why = f"{len(blob)} characters of base64 that no text check can read"
            yield span(view, match.start(), match.end(), Status.FAIL, why)
    for match in SHORT_LINES.finditer(data):
        lines = (match.group() or b"").translate(None, _NOT_ALPHABET)
        if is_blob(lines, LINE_ENTROPY):
            why = f"{len(lines)} characters of base64 wrapped into short lines"
            yield span(view, match.start(), match.end(), Status.FAIL, why)


def is_blob(blob: bytes, least_entropy: float) -> bool:
    """Say whether a run over the alphabet is long and random enough to be encoded data."""
    return (
        len(blob) > MAX_CHARS
        and not _HEX.issuperset(blob)
        and len(set(blob)) >= MIN_DISTINCT
        and any(0x41 <= byte <= 0x5A for byte in blob)
        and any(0x61 <= byte <= 0x7A for byte in blob)
        and any(0x30 <= byte <= 0x39 for byte in blob)
        and _PIECE.search(blob) is not None
        and entropy(blob) >= least_entropy
    )


BASE64: Final = Check(
    id="base64",
    title="No base64 blob over 200 characters",
    severity=Severity.MEDIUM,
    find=find,
)
