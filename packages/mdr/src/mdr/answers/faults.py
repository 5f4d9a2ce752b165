"""What strangers are told of an error: its HTTP status, and nothing of the machine it happened on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.errors import MdrError, Refusal, UsageError, WorldError

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS: Final[Mapping[str, int]] = {
    "bad-reference": 400,
    "bad-request": 400,
    "digest-too-short": 400,
    "token-missing": 401,
    "token-unknown": 401,
    "token-revoked": 401,
    "token-expired": 401,
    "token-scope": 403,
    "origin-not-allowed": 403,
    "not-found": 404,
    "method-not-allowed": 405,
    "ambiguous-reference": 409,
    "gone": 410,
    "body-too-slow": 408,
    "head-too-slow": 408,
    "body-too-large": 413,
    "uri-too-long": 414,
    "media-type": 415,
    "host-not-served": 421,
    "invalid": 422,
    "rate-limited": 429,
    "head-too-large": 431,
    "tombstone": 451,
    "overloaded": 503,
    "timeout": 503,
}
"""Code -> status; what is not listed follows from whose fault it is."""
DAMAGE: Final = frozenset({"blob-missing", "blob-corrupt", "manifest-corrupt"})
"""Refusals that are our fault."""
OURS: Final = ("index-", "store-", "blob", "registry-", "database-")
"""How the codes of our own stores begin; other failures of the world are those of a source."""


def status_of(error: MdrError) -> int:
    """Return the HTTP status of an error."""
    known = STATUS.get(error.code)
    if known is not None:
        return known
    match error:
        case UsageError():
            return 422
        case Refusal():
            return 500 if error.code in DAMAGE else 403
        case WorldError():
            return 503 if error.code.startswith(OURS) else 502
        case _:
            return 500


def is_told(error: MdrError) -> bool:
    """Say whether message, hint and data may leave the machine."""
    return status_of(error) < 500


def told_message(error: MdrError) -> str:
    """Return the message, without the paths and addresses of the machine; the log has the whole."""
    if is_told(error) or isinstance(error, Refusal):
        return error.message
    words = {
        "overloaded": "too many requests at once",
        "timeout": "this took too long",
    }
    return words.get(error.code, "a store or a source that this needs cannot be reached")


def told_hint(error: MdrError) -> str:
    """Return the hint, or that it may be different later."""
    return error.hint if is_told(error) else "try again later"
