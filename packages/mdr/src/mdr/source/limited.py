"""Read from git's own trace of an HTTP conversation whether the server asked to be left alone, and how long.

git prints the status of a refused request and drops its fields, so ``Retry-After`` is only in the trace
that ``GIT_TRACE_CURL`` writes (credentials redacted, contents left out). The file lives as long as the call.
"""

from __future__ import annotations

import re
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from mdr.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mdr.source.locate import Location

TAIL_BYTES: Final = 64 << 10
"""How much of a trace's end is read."""
DEFAULT_PAUSE: Final = 60
"""Seconds to wait when a server refuses and does not say for how long."""
MAX_PAUSE: Final = 86_400
"""Longest pause that is believed, in seconds."""
_LINE: Final = re.compile(r"<= [Rr]ecv header[^:]*: ([^\r\n]+)")
_STATUS: Final = re.compile(r"HTTP/[0-9.]+ ([0-9]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A server's last answer, when it was a plea to come back later."""

    status: int
    pause: int
    """Seconds."""


@contextmanager
def traced(location: Location, data: Path) -> Iterator[Mapping[str, str]]:
    """Run a call of git with a trace; a failure that was a plea for patience becomes one error.

    Args:
        location: Where git goes; only http and https have fields to read.
        data: The data folder, whose ``tmp`` holds the trace.

    Yields:
        Variables for git.

    Raises:
        mdr.errors.SourceError: host-rate-limited, with ``status`` and ``retry_after`` (seconds); else as raised.
    """
    if location.scheme not in {"http", "https"}:
        yield {}
        return
    file = data / "tmp" / f"trace-{secrets.token_hex(8)}"
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield {"GIT_TRACE_CURL": str(file), "GIT_TRACE_CURL_NO_DATA": "1", "GIT_TRACE_REDACT": "1"}
    except SourceError as error:
        refused = read_refusal(_tail(file), time.time()) if error.code == "git-failed" else None
        if refused is None:
            raise
        raise SourceError(
            "host-rate-limited",
            f"{location.server} answered {refused.status} and asks to wait {refused.pause} s",
            hint="try again after that time",
            data={"status": refused.status, "retry_after": refused.pause, "host": location.server},
        ) from error
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def read_refusal(trace: str, now: float) -> Refused | None:
    """Say whether the last answer in ``trace`` asks for patience.

    Args:
        trace: Lines of ``GIT_TRACE_CURL``.
        now: Seconds since 1970.

    Returns:
        ``None`` unless the status is 429, or 403 or 503 together with a time to wait.
    """
    status, fields = _last_answer(trace)
    pause = _pause(fields, now)
    if status == 429 and pause is None:
        pause = DEFAULT_PAUSE
    if status not in {403, 429, 503} or pause is None:
        return None
    return Refused(status=status, pause=min(max(pause, 1), MAX_PAUSE))


def _last_answer(trace: str) -> tuple[int, dict[str, str]]:
    status = 0
    fields: dict[str, str] = {}
    for match in _LINE.finditer(trace):
        line = match[1].strip()
        start = _STATUS.match(line)
        if start is not None:
            status, fields = int(start[1]), {}
        else:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
    return status, fields


def _pause(fields: Mapping[str, str], now: float) -> int | None:
    """Return the seconds to wait by ``Retry-After`` (RFC 9110), else by GitHub's or GitLab's reset time."""
    wanted = fields.get("retry-after", "")
    if wanted.isdecimal():
        return int(wanted[:9])
    if wanted:
        with suppress(ValueError, TypeError, OverflowError):
            return int(parsedate_to_datetime(wanted).timestamp() - now)
    spent = "0" in {fields.get("x-ratelimit-remaining"), fields.get("ratelimit-remaining")}
    reset = fields.get("x-ratelimit-reset") or fields.get("ratelimit-reset") or ""
    return int(int(reset[:12]) - now) if spent and reset.isdecimal() else None


def _tail(file: Path) -> str:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(0, 2)
        opened.seek(max(0, opened.tell() - TAIL_BYTES))
        return opened.read().decode("utf-8", "replace")
    return ""
