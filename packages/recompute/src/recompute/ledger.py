"""What every reader of a ledger holds to: its layout, limits and schema, and which rows stand. An edge module.

The layout is docs/reference/ledger.md: ``manifest.json`` and ``rows/*.jsonl``, one row a line. What else a
row means is for those who ask: :mod:`recompute.measure` for measured runs, :mod:`recompute.diagnose` for failures.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

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


class OfRun(Protocol):
    """What a row says of the run that it is of."""

    @property
    def id(self) -> Hashable:
        """Names the run."""

    @property
    def repeat(self) -> Hashable:
        """Counts the repeats of a run."""

    @property
    def rank(self) -> Hashable:
        """Who wrote the row."""

    @property
    def attempt(self) -> int:
        """Counts the starts of one repeat."""

    @property
    def final(self) -> bool:
        """Whether the run had ended."""


OfRunT = TypeVar("OfRunT", bound=OfRun)


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
        InputError: ``bad-ledger``, file and line named: a line is too long or no JSON, or there are too many;
            ``cannot-read``.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if len(paths) > MAX_FILES:
        raise bad_ledger(folder, 1, f"more than {MAX_FILES} files")
    yield from _lines_of(paths, notes)


def lines_of_file(path: Path) -> Iterator[Line]:
    """Yield the lines of one file of rows, with no ledger around it; a torn last line is a bad one.

    Args:
        path: The file.

    Raises:
        InputError: As for :func:`lines_of`.
    """
    yield from _lines_of([path], None)


def standing(rows: Iterable[tuple[Line, OfRunT]]) -> tuple[tuple[Line, OfRunT], ...]:
    """Return the row that stands for each run and rank: the last attempt, final before unfinished, the later.

    Args:
        rows: Rows in the order of the ledger, each with its line.

    Raises:
        InputError: ``ledger-conflict``: two files hold different final rows of the same run and rank.
    """
    held: dict[tuple[Hashable, ...], tuple[Line, OfRunT]] = {}
    for line, row in rows:
        key = (row.id, row.repeat, row.rank)
        if key in held:
            other_line, other = held[key]
            order, other_order = (row.attempt, row.final), (other.attempt, other.final)
            if order == other_order and row.final and line.path != other_line.path and row != other:
                _refuse_conflict(line, other_line, row)
            if order < other_order:
                continue
        held[key] = (line, row)
    return tuple(held.values())


def _refuse_conflict(here: Line, there: Line, row: OfRun) -> NoReturn:
    raise InputError(
        "ledger-conflict",
        f"{here.path}:{here.number} and {there.path}:{there.number} both end run {row.id!r} on rank {row.rank}, differently",
        hint="take one ledger into the other instead: recompute import LEDGER --out OTHER",
        data={"files": [str(here.path), str(there.path)], "id": row.id, "rank": row.rank},
    )


def _lines_of(paths: Iterable[Path], notes: list[str] | None) -> Iterator[Line]:
    count = 0
    for path in paths:
        for number, line in _raw_lines(path):
            if not line.strip():
                continue
            if notes is not None and not line.endswith(b"\n") and _is_torn(line):
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
        raise InputError(
            "cannot-read",
            f"cannot read {path}: {error.strerror or error}",
            hint="name a file or folder that you may read",
            data={"path": str(path)},
        ) from error


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
