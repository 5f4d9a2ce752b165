"""What ``recompute measure`` answers: which runs there are and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recompute.measure.candidate import text_of
from recompute.report.document import envelope
from recompute.report.text import gib, table

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.row import Row
    from recompute.measure.study import Done


def measure_document(job: JobConfig, root: str, done: Sequence[Done]) -> dict[str, Any]:
    """Return ``recompute.measure/1``."""
    return {
        **envelope("measure", job),
        "ledger": root,
        "runs": [
            {
                "id": item.run.name,
                "candidate": text_of(item.run.choice),
                "repeat": item.run.repeat,
                "outcomes": sorted({row.outcome.value for row in item.rows}),
                "peak_bytes": _peak(item.rows),
                "skipped": item.skipped,
            }
            for item in done
        ],
    }


def measure_text(root: str, done: Sequence[Done]) -> str:
    """Return the runs as a table."""
    rows = []
    for item in done:
        worst = next((row for row in item.rows if row.outcome.value != "pass"), item.rows[0])
        peak = _peak(item.rows)
        rows.append(
            (
                item.run.name[:44],
                worst.outcome.value,
                (worst.stage or "").replace("_", " "),
                "" if peak is None else gib(peak),
                "before" if item.skipped else "",
            )
        )
    header = ("run", "outcome|", "in|", "peak GiB", "|")
    return f"{table(header, rows)}\n\nNext: recompute compare {root}"


def _peak(rows: Sequence[Row]) -> int | None:
    peaks = [row.peak.allocated_peak_bytes for row in rows if row.peak is not None]
    return max((peak for peak in peaks if peak is not None), default=None)
