"""What ``recompute import`` answers: the rows that a run became, and what they leave open."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from recompute.measure.groups import IMPORTED
from recompute.report.text import bullets, gib, printable, table

if TYPE_CHECKING:
    from recompute.imports.series import Series
    from recompute.measure.row import Row


def import_document(root: str, series: Series, rows: Sequence[Row]) -> dict[str, Any]:
    """Return ``recompute.import/1``."""
    return {
        "schema": "recompute.import/1",
        "job": {"path": root, "sha256": None, "format": "ledger"},
        "changes": [],
        "assumptions": [],
        "ledger": root,
        "source": series.source,
        "runs": [
            {
                "id": row.id,
                "candidate": row.candidate,
                "rank": row.rank,
                "outcome": row.outcome.value,
                "peak_bytes": None if row.peak is None else row.peak.allocated_peak_bytes,
                "steps": len(row.step_seconds),
            }
            for row in rows
        ],
        "notes": _notes(series),
    }


def import_text(root: str, series: Series, rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    cells = []
    for row in rows:
        peak = None if row.peak is None else row.peak.allocated_peak_bytes
        steady = row.steady_seconds
        time = f"{median(steady) * 1000:.1f}" if steady else ""
        name = printable(row.id)[:44]
        size = "" if peak is None else gib(peak)
        cells.append(
            (name, str(row.rank), row.outcome.value, size, str(len(row.step_seconds)), time)
        )
    header = ("run", "rank", "outcome|", "peak GiB", "steps", "ms a step")
    shown = table(header, cells) if cells else "nothing new"
    said = [printable(note) for note in _notes(series)]
    notes = f"Notes\n{bullets(said)}\n\n" if said else ""
    return f"{shown}\n\n{notes}Next: recompute compare {root}"


def _notes(series: Series) -> list[str]:
    return [*series.notes, *(text for name, text in IMPORTED.items() if name == series.source)]
