"""Rows of a ledger from a run that was not measured by us, and what such rows cannot prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recompute.errors import InputError
from recompute.imports.series import RankMemory, Series
from recompute.measure.row import Outcome, PhaseBytes, Row

WHOLE_RUN: Final = "whole_run"
"""In place of a phase: reports give one maximum since the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """What the reports do not say of a run."""

    id: str
    candidate: str
    control_id: str | None = None
    repeat: int = 0
    warmup_steps: int = 2
    """Leading reports that are warm-up."""


def rows_of_series(series: Series, run: ImportedRun) -> tuple[Row, ...]:
    """Return a row for each rank whose memory was reported, one where there was none.

    Args:
        series: What the run showed.
        run: What it was.

    Raises:
        InputError: ``nothing-to-import``.
    """
    if not series.seconds and not series.memory and series.outcome is None:
        raise InputError(
            "nothing-to-import",
            "no step times, memory reports or failure were found",
            hint="give Megatron's own output, or event files written with --log-timers-to-tensorboard and "
            "--log-memory-to-tensorboard",
            data={"source": series.source},
        )
    memory: dict[int | None, RankMemory] = series.memory or {None: RankMemory()}
    return tuple(
        _row(series, run, 0 if rank is None else rank, held, len(memory))
        for rank, held in sorted(
            memory.items(), key=lambda item: -1 if item[0] is None else item[0]
        )
    )


def _row(series: Series, run: ImportedRun, rank: int, memory: RankMemory, ranks: int) -> Row:
    seconds = tuple(series.seconds[step] for step in sorted(series.seconds))
    outcome = series.outcome or (Outcome.NONFINITE if series.nan else Outcome.PASS)
    phase = PhaseBytes(
        phase=WHOLE_RUN,
        allocated_peak_bytes=memory.max_allocated,
        reserved_peak_bytes=memory.max_reserved,
        device_peak_bytes=memory.device_used,
    )
    known = memory.max_allocated is not None or memory.max_reserved is not None
    return Row(
        id=run.id,
        candidate=run.candidate,
        control_id=run.control_id,
        repeat=run.repeat,
        rank=rank,
        world_size=ranks,
        outcome=outcome,
        stage=series.stage,
        phases=(phase,) if known else (),
        step_seconds=seconds,
        warmup_steps=min(run.warmup_steps, len(seconds)),
        optimizer_initialized=series.skipped is not None and series.last - series.skipped >= 2,
        skipped_iterations=series.skipped or 0,
        nan_iterations=series.nan or 0,
        alloc_retries=memory.retries,
        message=series.message,
        imported=series.source,
    )
