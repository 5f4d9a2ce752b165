"""Bytes, and how people write them. The only module that knows 2**30 from 10**9."""

from __future__ import annotations

import re
from typing import Final, NewType

Bytes = NewType("Bytes", int)
"""A size in bytes; always an integer."""

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

FACTORS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}
"""Unit, lower case -> bytes. ``GB`` is 10**9 and ``GiB`` 2**30; a bare number is bytes."""

_SIZE: Final = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,5})\s*")


def parse_bytes(text: str) -> Bytes | None:
    """Read a size such as ``76GiB``, ``80GB`` or ``123``.

    Args:
        text: Number and unit, with or without a space between them.

    Returns:
        The size in bytes, rounded down, or ``None`` when ``text`` is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in FACTORS:
        return None
    factor = FACTORS[match[2].lower()]
    whole, _, fraction = match[1].partition(".")
    part = int(fraction) * factor // 10 ** len(fraction) if fraction else 0
    return Bytes(int(whole) * factor + part)


def format_gib(size: int, digits: int = 2) -> str:
    """Write a size in GiB for people, sign included."""
    return f"{size / GIB:.{digits}f} GiB"


def exact_size(size: int) -> str:
    """Write a size for a command line: ``20GiB`` where that reads back to the same bytes, else bytes."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB)):
        text = f"{size / factor:.6g}{unit}"
        if size >= factor and parse_bytes(text) == size:
            return text
    return str(size)
