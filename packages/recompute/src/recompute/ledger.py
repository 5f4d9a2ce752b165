"""What every reader of a ledger holds to: where it is, how long it may be, which schema it has. An edge module.

The layout is docs/reference/ledger.md: ``manifest.json`` and ``rows/*.jsonl``, one row a line. What a row
means is for those who ask: :mod:`recompute.measure` for measured runs, :mod:`recompute.diagnose` for failures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from recompute.errors import InputError

SCHEMA: Final = "recompute.ledger/1"
MAX_LINE: Final = 8 << 20
"""Bytes of a row."""
MAX_ROWS: Final = 200_000
MAX_FILES: Final = 20_000
MAX_MANIFEST: Final = 4 << 20
"""Bytes of a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a ledger that is JSON."""

    path: Path
    number: int
    """Counted from 1."""
    data: bytes
    """As it stands in the file."""
    value: object


def manifest_of(root: Path) -> dict[str, Any]:
    """Read the manifest of the ledger in a folder.

    Raises:
        InputError: ``not-a-ledger``: there is none; ``bad-ledger``: it is too long, no JSON or of another
            schema.
    """
    path = root / "manifest.json"
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_MANIFEST + 1)
    except OSError as error:
        raise InputError(
            "not-a-ledger",
            f"{root} holds no manifest.json: {error.strerror or error}",
            hint="name the folder that recompute measure --out wrote",
            data={"path": str(root)},
        ) from error
    if len(data) > MAX_MANIFEST:
        raise bad_ledger(path, 1, f"longer than {MAX_MANIFEST} bytes")
    document = _json(path, 1, data)
    if not isinstance(document, dict):
        raise bad_ledger(path, 1, "not a JSON object")
    if document.get("schema") != SCHEMA:
        raise bad_ledger(path, 1, f"schema is {str(document.get('schema'))[:60]!r}, not {SCHEMA!r}")
    return document


def lines_of(folder: Path, notes: list[str]) -> Iterator[Line]:
    """Yield the lines of every file of rows, blank ones left out.

    Args:
        folder: ``rows`` of a ledger.
        notes: Told of torn last lines, which a killed writer leaves and which are passed over.

    Raises:
        InputError: ``bad-ledger``, file and line named: a line is too long or no JSON, or there are too many.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if len(paths) > MAX_FILES:
        raise bad_ledger(folder, 1, f"more than {MAX_FILES} files")
    count = 0
    for path in paths:
        for number, line in _raw_lines(path):
            if not line.strip():
                continue
            if not line.endswith(b"\n") and _is_torn(line):
                notes.append(f"{path}:{number}: torn last line passed over")
                continue
            count += 1
            if count > MAX_ROWS:
                raise bad_ledger(path, number, f"more than {MAX_ROWS} rows")
            yield Line(path=path, number=number, data=line, value=_json(path, number, line))


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), 1):
                if len(line) > MAX_LINE:
                    raise bad_ledger(path, number, f"longer than {MAX_LINE} bytes")
                yield number, line
    except OSError as error:
        raise bad_ledger(path, 1, error.strerror or str(error)) from error


def _is_torn(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _json(path: Path, number: int, data: bytes) -> object:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = str(error)[:120]
    raise bad_ledger(path, number, f"not JSON: {reason}")


def bad_ledger(path: Path, number: int, reason: str) -> InputError:
    """Return the error that names a line of a ledger.

    Args:
        path: The file.
        number: The line, from 1.
        reason: What is wrong with it.
    """
    return InputError(
        "bad-ledger",
        f"{path}:{number}: {reason}",
        hint="rows are written by recompute measure and MemoryProbe; see docs/reference/ledger.md",
        data={"path": str(path), "line": number},
    )
