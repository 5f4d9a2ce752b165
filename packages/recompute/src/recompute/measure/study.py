"""A matched study: the control first, one change at a time, repeats in random order, failures as rows.

What has ended is never run again, so a study that was killed goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.config.job_writers import job_yaml
from recompute.config.schema import JobConfig
from recompute.errors import UnsupportedError
from recompute.measure import slurm
from recompute.measure.candidate import text_of
from recompute.measure.conclude import conclude, ended_before
from recompute.measure.groups import groups_of
from recompute.measure.launch import Launcher, end_leftovers
from recompute.measure.ledger import (
    held_alone,
    note_environment,
    same_study,
    write_manifest,
    write_whole,
    writing,
)
from recompute.measure.lines import BatchLine, Line, LocalLine
from recompute.measure.row import Row
from recompute.measure.runs import (
    PlannedRun,
    Settings,
    first_runs,
    later_runs,
    reference_of,
    terms_of,
)
from recompute.measure.seen import seen_otherwise
from recompute.measure.workload import workload_of

TRIES: Final = 3
"""Starts of a run that is ended from outside (a lost node, a preemption), before it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a run of a study stands: its rows, and whether it had ended before."""

    run: PlannedRun
    rows: tuple[Row, ...]
    skipped: bool

    @property
    def interrupted(self) -> bool:
        """Whether it was ended from outside: nothing is known about the candidate."""
        return any(row.interrupted for row in self.rows)

    @property
    def unlike(self) -> str | None:
        """In what the built model recomputes something else than the run was to: worth to be said at once."""
        return next((text for one in groups_of(self.rows) if (text := seen_otherwise(one))), None)


def run_study(
    job: JobConfig,
    choices: Sequence[RecomputeChoice],
    settings: Settings,
    say: Callable[[str], None],
) -> Iterator[Done]:
    """Run a study; every run ends in rows.

    Args:
        job: Complete and normalized.
        choices: The candidates; the control is always measured, before them.
        settings: How.
        say: Takes lines of progress.

    Raises:
        UnsupportedError: ``workload-unsupported``.
        InputError: ``ledger-of-another-job``; ``ledger-of-another-study``.
        WorldError: ``ledger-in-use``, ``launcher-failed``, ``slurm-refused``, ``slurm-silent``, ``cannot-write``.
    """
    workload = _begun(job, settings)
    with held_alone(settings.out):
        same_study(settings.out, terms_of(settings))
        if workload is not None:
            path = Path(settings.out, "workload.json")
            with writing(path):
                write_whole(path, json.dumps(workload, indent=1) + "\n")
        yield from _go_on(job, choices, settings, say)


def _go_on(
    job: JobConfig,
    choices: Sequence[RecomputeChoice],
    settings: Settings,
    say: Callable[[str], None],
) -> Iterator[Done]:
    if end_leftovers(settings.out):
        say("ended a run that an earlier recompute measure had left behind")
    if settings.launcher is not Launcher.SLURM and (left := slurm.cancel_leftover(settings.out)):
        say(left)
    first: list[tuple[RecomputeChoice, tuple[Row, ...]]] = []
    for done in _run_all(job, first_runs(choices, settings), settings, say):
        first.append((done.run.choice, done.rows))
        yield done
    reference = reference_of(first)
    if reference != NO_RECOMPUTE:
        name = text_of(reference)
        say(f"no control: no recompute does not run here; {name} is repeated in its place")
    yield from _run_all(job, later_runs(choices, settings, reference), settings, say)


def _begun(job: JobConfig, settings: Settings) -> dict[str, Any] | None:
    """Make the ledger; return the workload of the built-in trainer, where the job has one."""
    try:
        workload = workload_of(job)
    except UnsupportedError:
        if not settings.entry:
            raise
        workload = None
    text = job_yaml(job, comments=False)
    write_manifest(settings.out, environment={}, job_yaml=text, study=terms_of(settings))
    return workload


def _run_all(
    job: JobConfig,
    runs: Sequence[PlannedRun],
    settings: Settings,
    say: Callable[[str], None],
) -> Iterator[Done]:
    held = [(run, _kept(run, settings)) for run in runs]
    waiting = [run for run, rows in held if rows is None]
    in_batch = settings.launcher is Launcher.SLURM
    line: Line = (BatchLine if in_batch else LocalLine)(job, settings, waiting, say)
    try:
        for run, rows in held:
            if rows is not None:
                yield Done(run=run, rows=rows, skipped=True)
                continue
            say(f"{run.name}: {text_of(run.choice)}")
            yield _finished(line, run, settings)
    finally:
        line.close()


def _kept(run: PlannedRun, settings: Settings) -> tuple[Row, ...] | None:
    """Return the rows of a run that is not to be run again; None when it is to be run."""
    rows = ended_before(settings.out, run)
    again = rows is not None and any(row.outcome in settings.retry for row in rows)
    return None if again else rows


def _finished(line: Line, run: PlannedRun, settings: Settings) -> Done:
    """Run one to its end, again where it was ended from outside."""
    for _ in range(TRIES):
        told, ended = line.finish(run)
        rows = conclude(run, told, ended, settings.out, line.world)
        if seen := next((row.environment for row in rows if row.environment), None):
            note_environment(settings.out, seen)
        if not (ended.again and any(row.interrupted for row in rows)):
            break
    return Done(run=run, rows=rows, skipped=False)
