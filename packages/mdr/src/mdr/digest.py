"""SHA-256 as the only identity. The only module that imports hashlib."""

from __future__ import annotations

import hashlib
import hmac
from typing import NewType

Sha256 = NewType("Sha256", str)
"""64 lower-case hexadecimal digits over raw bytes, as git stores them: no header, no newline change."""

HEX = frozenset("0123456789abcdef")


def sha256(data: bytes) -> Sha256:
    """Return the SHA-256 of ``data``."""
    return Sha256(hashlib.sha256(data).hexdigest())


def is_sha256(text: str) -> bool:
    """Say whether ``text`` is a full lower-case SHA-256."""
    return len(text) == 64 and HEX.issuperset(text)


def same(left: Sha256, right: Sha256) -> bool:
    """Compare two digests in constant time."""
    return hmac.compare_digest(left, right)
