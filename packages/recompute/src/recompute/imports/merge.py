"""The runs of one ledger taken into another of the same job, as further repeats. An edge module.

Studies number their runs alike, so that two ledgers both hold a ``control-0``: copied into one folder they
would be one run that ended twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from typing import Final

from recompute.config.choice import NO_RECOMPUTE
from recompute.errors import InputError
from recompute.imports.series import Series
from recompute.ledger import manifest_of
from recompute.measure.groups import groups_of
from recompute.measure.ledger import (
    Ledger,
    RowWriter,
    held_alone,
    read_ledger,
    same_study,
    write_manifest,
)
from recompute.measure.row import Row

WRITER: Final = "merged"
"""Stem of the file of rows."""


def is_ledger(path: str) -> bool:
    """Say whether a folder is a ledger."""
    try:
        manifest_of(Path(path))
    except InputError:
        return False
    return True


def merge_ledger(source: str, out: str) -> tuple[Series, tuple[Row, ...]]:
    """Append the runs of a ledger to another one of the same job, which is made where it is not there.

    Args:
        source: The ledger that is read.
        out: The ledger that is written to.

    Returns:
        What is to be said, and the rows that were appended: runs that are there already are not.

    Raises:
        InputError: ``not-a-ledger``, ``bad-ledger``, ``ledger-of-another-job``, ``ledger-of-another-study``.
        WorldError: ``cannot-write``; ``ledger-in-use``.
    """
    theirs = read_ledger(source)
    text = None if theirs.job_path is None else Path(theirs.job_path).read_text("utf-8")
    study = theirs.manifest.get("study")
    more = {} if study is None else {"study": study}
    write_manifest(out, environment=theirs.environment, job_yaml=text, **more)
    if isinstance(study, dict):
        same_study(out, study)
    if text is None:
        return _merged(theirs, out)
    with held_alone(out):
        return _merged(theirs, out)


def _merged(theirs: Ledger, out: str) -> tuple[Series, tuple[Row, ...]]:
    ours = read_ledger(out).rows
    series = Series(source="ledger")
    added: list[Row] = []
    writer = RowWriter(out, WRITER)
    for run in _renumbered(theirs, ours, series):
        for row in run:
            writer.append(row)
        added += run
    writer.close()
    return series, tuple(added)


def _renumbered(theirs: Ledger, ours: Sequence[Row], series: Series) -> Iterator[tuple[Row, ...]]:
    """Yield their runs under the next free repeats of their candidates, those that are there already left out."""
    held = {_content(row) for row in ours}
    control = next((row.control_id for row in ours if row.control_id is not None), None)
    groups = sorted(groups_of(theirs.rows), key=lambda group: group.choice != NO_RECOMPUTE)
    for group in groups:
        free = _free_repeats(group.candidate, ours)
        stem = "control" if group.choice == NO_RECOMPUTE else group.candidate
        for rows in (rows for run in group.runs for rows in _by_id(run)):
            if all(_content(row) in held for row in rows):
                series.notes.append(f"{rows[0].id} is there already")
                continue
            repeat = next(free)
            name = f"{stem}-{repeat}"
            if name != rows[0].id:
                series.notes.append(f"{rows[0].id} is {name} here")
            if control is None and group.choice == NO_RECOMPUTE:
                control = name
            yield tuple(_as(row, name, repeat, control, theirs) for row in rows)


def _as(row: Row, name: str, repeat: int, control: str | None, theirs: Ledger) -> Row:
    environment = {**theirs.environment, **(row.environment or {})}
    return replace(
        row,
        id=name,
        repeat=repeat,
        attempt=0,
        control_id=row.control_id if control is None else control,
        environment=environment or None,
    )


def _free_repeats(candidate: str, ours: Sequence[Row]) -> Iterator[int]:
    mine = (one for one in groups_of(ours) if one.candidate == candidate)
    taken = {row.repeat for one in mine for row in one.rows}
    return (number for number in count() if number not in taken)


def _by_id(run: Sequence[Row]) -> Iterator[list[Row]]:
    """Tell apart runs of one candidate and repeat that have names of their own."""
    ordered = sorted(run, key=lambda row: (row.id, row.rank))
    for _, rows in groupby(ordered, key=lambda row: row.id):
        yield list(rows)


def _content(row: Row) -> str:
    """Return what a row says of its run, whatever that is called."""
    plain = replace(row, id="-", repeat=0, attempt=0, control_id=None, environment=None)
    return repr(plain.to_document())
