"""One file of ledger rows, without the ledger around it. An edge module."""

from __future__ import annotations

import json

from recompute.errors import InputError
from recompute.ledger import MAX_LINE, MAX_ROWS
from recompute.measure.ledger import standing
from recompute.measure.row import BadRowError, Row, row_of


def read_rows(path: str) -> tuple[Row, ...]:
    """Read ``rows/*.jsonl`` of a ledger, or a file like it.

    Raises:
        InputError: ``cannot-read``, ``bad-ledger`` (the line is named).
    """
    rows: list[Row] = []
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - a path as the user wrote it
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), 1):
                if number > MAX_ROWS or len(line) > MAX_LINE:
                    raise _bad(path, number, "more rows or longer lines than a ledger has")
                if line.strip():
                    rows.append(row_of(json.loads(line)))
    except OSError as error:
        raise InputError(
            "cannot-read",
            f"cannot read {path}: {error.strerror or error}",
            hint="name a ledger, a log or a snapshot",
            data={"path": path},
        ) from error
    except (ValueError, RecursionError, BadRowError) as error:
        raise _bad(path, len(rows) + 1, str(error)[:120]) from error
    return standing(rows)


def _bad(path: str, line: int, reason: str) -> InputError:
    return InputError(
        "bad-ledger",
        f"{path}:{line}: {reason}",
        hint="rows are written by recompute measure and MemoryProbe; see docs/reference/ledger.md",
        data={"path": path, "line": line},
    )
