"""What ``recompute measure`` answers: which runs there are and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recompute.measure.candidate import text_of
from recompute.measure.groups import SEVERITY
from recompute.measure.row import Outcome
from recompute.report.document import envelope
from recompute.report.text import gib, table

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.dry_run import Preview
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
                "data_seed": item.run.data_seed,
                "order": next((row.order for row in item.rows if row.order is not None), None),
                "interrupted": item.interrupted,
            }
            for item in done
        ],
    }


def measure_text(root: str, done: Sequence[Done]) -> str:
    """Return the runs as a table."""
    rows = []
    for item in done:
        worst = max(item.rows, key=lambda row: SEVERITY.index(row.outcome))
        peak = _peak(item.rows)
        rows.append(
            (
                item.run.name[:44],
                worst.outcome.value,
                (worst.stage or "").replace("_", " "),
                "" if peak is None else gib(peak),
                _word(item),
            )
        )
    header = ("run", "outcome|", "in|", "peak GiB", "|")
    hint = "\nOnce it is mended: the same command with --retry crash" if _never_began(done) else ""
    return f"{table(header, rows)}\n\nNext: recompute compare {root}{hint}"


def _never_began(done: Sequence[Done]) -> bool:
    """Say whether a run crashed before any rank had written a row: a missing package, a wrong path."""
    return any(
        all(row.outcome is Outcome.CRASH and not row.phases for row in item.rows) for item in done
    )


def preview_document(job: JobConfig, root: str, runs: Sequence[Preview]) -> dict[str, Any]:
    """Return ``recompute.measure/1`` of a study that was not run: every run without an outcome."""
    return {
        **envelope("measure", job),
        "ledger": root,
        "runs": [
            {
                "id": item.run.name,
                "candidate": text_of(item.run.choice),
                "repeat": item.run.repeat,
                "outcomes": [],
                "peak_bytes": None,
                "skipped": False,
                "data_seed": item.run.data_seed,
                "order": order,
                "interrupted": False,
                "command": item.command,
                "script": item.script,
            }
            for order, item in enumerate(runs)
        ],
    }


def preview_text(runs: Sequence[Preview]) -> str:
    """Return the names of the runs, each with its command, or all batch scripts after the names."""
    names = "\n".join(item.run.name for item in runs)
    scripts = [f"# {item.run.name}\n{item.script}" for item in runs if item.script is not None]
    if scripts:
        return "\n\n".join([names, *scripts]).rstrip()
    rows = [(item.run.name[:44], item.command) for item in runs]
    return table(("run", "command|"), rows)


def _word(item: Done) -> str:
    if item.interrupted:
        return "interrupted"
    return "before" if item.skipped else ""


def _peak(rows: Sequence[Row]) -> int | None:
    peaks = [row.peak.allocated_peak_bytes for row in rows if row.peak is not None]
    return max((peak for peak in peaks if peak is not None), default=None)
