"""What ``--calibrate`` and ``--expert-load`` make of the predictor; one way for every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.row import Row
    from recompute.timeline.calibrate import Measured, Pictured

MAX_LOAD = 1024.0


class Load(click.FloatRange):
    """A load factor; NaN passes every comparison of click's own."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert and check."""
        found = float(super().convert(value, param, ctx))
        if found != found:  # noqa: PLR0124 - that is what NaN is
            self.fail(f"{value} is no number", param, ctx)
        return found


calibrate_option = click.option(
    "--calibrate",
    metavar="FILE",
    help="Correct the prediction by a run of JOB as it is: a ledger, rows of one, a log with memory "
    "reports, or a memory snapshot. Times of a ledger scale the step time.",
)
expert_load_option = click.option(
    "--expert-load",
    type=Load(min=1.0, max=MAX_LOAD),
    metavar="X",
    help="Predict the rank that gets X times its share of the routed tokens, at most all of them; "
    "ranges reach down to the balanced one.",
)


def predictor_of(
    job: JobConfig, calibrate: str | None, expert_load: float | None
) -> Callable[[JobConfig], Pictured] | None:
    """Return what makes a predictor, ``None`` for the plain one.

    Raises:
        RecomputeError: The file cannot be read, or is another job's.
    """
    if calibrate is None and expert_load is None:
        return None
    from recompute.config.normalize import normalize
    from recompute.timeline.calibrate import Calibrated, calibration_of
    from recompute.timeline.hot_experts import HotExperts
    from recompute.timeline.predict import Predictor

    def plain(acted: JobConfig) -> Pictured:
        return Predictor(acted) if expert_load is None else HotExperts(acted, expert_load)

    if calibrate is None:
        return plain
    measured = measured_runs(calibrate, job)
    calibration = calibration_of(plain(normalize(job)), measured, Path(calibrate).name)
    return lambda acted: Calibrated(plain(acted), calibration)


def measured_runs(path: str, job: JobConfig) -> tuple[Measured, ...]:
    """Read what a control run measured.

    Args:
        path: A ledger's folder, a file of its rows, a log or a snapshot.
        job: The job as it ran; logs and snapshots do not say their recompute choice.

    Raises:
        RecomputeError: The file cannot be read.
    """
    if Path(path, "manifest.json").is_file():
        from recompute.measure.ledger import read_ledger

        return _of_rows(read_ledger(path).rows)
    if path.endswith(".jsonl"):
        from recompute.measure.ledger import read_rows

        return _of_rows(read_rows(path))
    return _of_log(path, job)


def _of_rows(rows: tuple[Row, ...]) -> tuple[Measured, ...]:
    """Take the control's rows, or the first candidate's where no run is a control."""
    from statistics import median

    from recompute.measure.candidate import choice_of_text
    from recompute.measure.row import Outcome
    from recompute.timeline.calibrate import Measured

    passed = [row for row in rows if row.outcome is Outcome.PASS and row.optimizer_initialized]
    controls = [row for row in passed if row.control_id in {None, row.id}] or passed
    first = controls[0].candidate if controls else None
    return tuple(
        Measured(
            choice=choice_of_text(row.candidate),
            rank=row.rank,
            static_bytes=row.static_bytes,
            peak_bytes=row.peak.allocated_peak_bytes,
            step_seconds=median(row.step_seconds) if row.step_seconds else None,
        )
        for row in controls
        if row.candidate == first
        and row.peak is not None
        and row.peak.allocated_peak_bytes is not None
    )


def _of_log(path: str, job: JobConfig) -> tuple[Measured, ...]:
    from recompute.config.choice import choice_of
    from recompute.diagnose.run import diagnose
    from recompute.timeline.calibrate import Measured

    answer, choice = diagnose((path,), job=job), choice_of(job)
    found = [
        Measured(choice=choice, rank=None, static_bytes=None, peak_bytes=shown.peak_bytes)
        for shown in answer.snapshots
    ]
    series = answer.seen.memory.items() if answer.seen is not None else ()
    for (_, rank), reports in series:
        peaks = [r.max_allocated for r, _ in reports if r.max_allocated is not None]
        between = [r.allocated for r, _ in reports if r.allocated is not None]
        if peaks:
            found.append(
                Measured(
                    choice=choice,
                    rank=rank,
                    static_bytes=between[-1] if between else None,
                    peak_bytes=max(peaks),
                )
            )
    return tuple(found)
