"""What a crawl ended with, and whose fault a failure was: the code of the error decides.

``OWN`` is our disk, database or program: the source is not blamed, and is due again in a minute. ``FINAL``
cannot become right by waiting: a dead letter at once. Everything else is tried again, less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawled:
    """It worked."""

    host: str
    repository: str
    """As the host spells it; another than asked for when it was renamed."""
    changed: bool
    new_versions: int = 0
    artifacts: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It did not."""

    code: str
    message: str
    final: bool = False
    """Whether trying again is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed:
    """It was not its turn, or the failure was not the source's: no attempt is counted."""

    seconds: int
    code: str
    message: str
    pauses_host: bool = False
    """Whether the server asked for it, for all its sources."""


Outcome = Crawled | Failed | Postponed


@dataclass(frozen=True, slots=True)
class Blame:
    """One error code and who has to do something about it."""

    code: str
    fault: str
    """``own`` or ``final``."""
    why: str


BLAMES: Final = (
    Blame("store-unwritable", "own", "our disk is full or broken"),
    Blame("store-readback", "own", "our disk is broken"),
    Blame("blobs-unreachable", "own", "our object storage does not answer"),
    Blame("blobs-refused", "own", "our object storage does not let us in"),
    Blame("database-unreachable", "own", "our database does not answer"),
    Blame("database-busy", "own", "our database is slow"),
    Blame("postgresql-missing", "own", "this machine lacks a driver"),
    Blame("s3-missing", "own", "this machine lacks a driver"),
    Blame("index-unreadable", "own", "our database does not answer"),
    Blame("index-newer", "own", "a newer program has the database; this one must be replaced"),
    Blame("index-older", "own", "the database is only read here"),
    Blame("git-missing", "own", "this machine lacks git"),
    Blame("git-too-old", "own", "this machine's git is too old"),
    Blame("os-error", "own", "this machine refused something"),
    Blame("stopped", "own", "the worker was told to stop"),
    Blame("bad-source", "final", "the words name no source"),
    Blame("credentials-in-url", "final", "a secret would be stored"),
    Blame("private-address", "final", "it leads into a private network"),
    Blame("source-too-large", "final", "it exceeds a limit"),
    Blame("source-local", "final", "an untrusted source lies on a disk"),
)
"""Codes that are not tried again in the ordinary way."""

_FAULTS: Final = {each.code: each.fault for each in BLAMES}


def failure(code: str, message: str, data: Mapping[str, Any], own_pause: int) -> Outcome:
    """Turn an error into an outcome.

    Args:
        code: Stable code of the error.
        message: What it said.
        data: What it carried; ``retry_after`` in seconds for ``host-rate-limited``.
        own_pause: Seconds until the next try after a fault of our own.
    """
    if code == "host-rate-limited":
        pause = data.get("retry_after")
        seconds = pause if isinstance(pause, int) and pause > 0 else own_pause
        return Postponed(seconds=seconds, code=code, message=message, pauses_host=True)
    if _FAULTS.get(code) == "own":
        return Postponed(seconds=own_pause, code=code, message=message)
    return Failed(code=code, message=message, final=_FAULTS.get(code) == "final")
