"""One JSON line on standard error for each event. No address of a reader, no query, no token is in it."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from mdr.errors import MdrError


class JsonLog:
    """Writes lines; a log that cannot be written never fails a request."""

    def __init__(self, *, requests: bool) -> None:
        """Say whether every request is written, or failures only."""
        self.requests = requests

    def event(self, level: str, event: str, **fields: Any) -> None:
        """Write one line."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"at": moment, "level": level, "event": event, **fields}, default=str)
        with suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")

    def request(self, *, status: int, error: MdrError | None, **fields: Any) -> None:
        """Write how a request ended; the inner words of a failure go here and nowhere else."""
        failed = status >= 500
        if not failed and not self.requests:
            return
        if error is not None:
            fields["code"] = error.code
            if failed:
                fields["message"] = error.message
        self.event("error" if failed else "info", "request", status=status, **fields)

    def crash(self, error: BaseException, **fields: Any) -> None:
        """Write a bug of ours with its traceback."""
        lines = traceback.format_exception(error)
        self.event("error", "crash", traceback="".join(lines), **fields)


class ToJson(logging.Handler):
    """Turns what libraries log into the same lines."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._log.event(record.levelname.lower(), "log", **fields)


def adopt_library_logs(log: JsonLog) -> None:
    """Send the warnings of every library through ``log``."""
    root = logging.getLogger()
    root.handlers[:] = [ToJson(log)]
    root.setLevel(logging.WARNING)
