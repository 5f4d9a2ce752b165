"""Take runs into a ledger. An edge module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from recompute.errors import InputError
from recompute.imports.event_file import is_event_file
from recompute.imports.rows import ImportedRun, rows_of_series
from recompute.imports.series import MAX_STEPS, Series
from recompute.imports.tensorboard import series_of_events
from recompute.imports.training_log import series_of_logs
from recompute.measure.ledger import RowWriter, write_manifest
from recompute.measure.row import Row

WRITER: Final = "imported"
"""Stem of the file of rows."""
MAX_FILES: Final = 10_000


def import_run(
    sources: Sequence[str], out: str, run: ImportedRun, *, job_yaml: str | None = None
) -> tuple[Series, tuple[Row, ...]]:
    """Read one run, and append its rows to a ledger, which is made where it is not there.

    Args:
        sources: Logs or event files of the run, or folders of them; not both kinds.
        out: The ledger.
        run: What the reports do not say.
        job_yaml: The job, for a new ledger.

    Raises:
        InputError: Sources cannot be read or hold nothing; the ledger is another job's.
        WorldError: ``cannot-write``.
    """
    events = _event_files(sources)
    if events and len(events) != len(_all_files(sources)) and not all(map(os.path.isdir, sources)):
        raise InputError(
            "mixed-sources",
            "logs and event files of one run were given together",
            hint="import one of them; event files say less",
            data={"event_files": len(events)},
        )
    series = series_of_events(events) if events else series_of_logs(sources)
    if series.dropped:
        series.notes.append(
            f"the last {MAX_STEPS} steps are kept, {series.dropped} before them are not"
        )
    rows = rows_of_series(series, run)
    if job_yaml is not None or not Path(out, "manifest.json").exists():
        write_manifest(out, environment={}, job_yaml=job_yaml)
    writer = RowWriter(out, WRITER)
    for row in rows:
        writer.append(row)
    writer.close()
    return series, rows


def _event_files(sources: Sequence[str]) -> list[str]:
    return [path for path in _all_files(sources) if is_event_file(path)]


def _all_files(sources: Sequence[str]) -> list[str]:
    """Return the files that are named, and those in the folders that are named."""
    found: list[str] = []
    for source in sources:
        if Path(source).is_dir():
            for where, _, names in os.walk(source):
                found += [str(Path(where, name)) for name in sorted(names)]
        else:
            found.append(source)
        if len(found) > MAX_FILES:
            raise InputError(
                "too-many-files",
                f"{source}: more than {MAX_FILES} files",
                hint="give the folder of one run",
                data={"path": source, "limit": MAX_FILES},
            )
    return found
