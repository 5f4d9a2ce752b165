"""Conditions and ranges of a request, as pure functions of header values (RFC 9110, 13 and 14)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_RANGE: Final = re.compile(r"bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})", re.ASCII | re.IGNORECASE)
ENCODED: Final = ("-gzip", "-zstd")
"""How the validator of an encoded body ends, since its bytes are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes ``first`` to ``last``, both included, counted from 0."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsatisfiable:
    """A range that has no byte of the body: 416."""


def matches(if_none_match: str, etag: str) -> bool:
    """Compare weakly, as ``If-None-Match`` does; the encoded forms of the same body match too.

    Args:
        if_none_match: The header's value.
        etag: Without quotes.
    """
    if if_none_match.strip() == "*":
        return True
    wanted = {etag, *(etag + tail for tail in ENCODED)}
    return any(found.group(2) in wanted for found in _TAG.finditer(if_none_match))


def part_of(value: str, if_range: str | None, etag: str, size: int) -> Part | Unsatisfiable | None:
    """Read a ``Range`` header.

    Args:
        value: Its value.
        if_range: The value of ``If-Range``; dates are never current, since nothing here has one.
        etag: Validator of the body, without quotes.
        size: Bytes of the body.

    Returns:
        ``None`` when the whole body is the answer: another unit, several ranges, or nonsense.
    """
    if if_range is not None and if_range.strip() != f'"{etag}"':
        return None
    found = _RANGE.fullmatch(value.strip())
    if found is None:
        return None
    first, last = found.groups()
    if not first:
        return _last_bytes(last, size)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        return Unsatisfiable()
    return Part(first=start, last=min(int(last), size - 1) if last else size - 1)


def _last_bytes(count: str, size: int) -> Part | Unsatisfiable | None:
    if not count:
        return None
    wanted = int(count)
    if wanted == 0 or size == 0:
        return Unsatisfiable()
    return Part(first=max(0, size - wanted), last=size - 1)
