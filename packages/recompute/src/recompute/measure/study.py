"""A matched study: the control first, one change at a time, repeats in random order, failures as rows.

What has ended is never run again, so a study that was killed goes on where it was.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.config.job_writers import job_yaml
from recompute.config.override_writers import overrides_for
from recompute.config.schema import JobConfig
from recompute.errors import UnsupportedError
from recompute.measure.candidate import text_of
from recompute.measure.launch import (
    Ended,
    Launcher,
    Started,
    command_of,
    end_leftovers,
    start_process,
    wait_for,
)
from recompute.measure.ledger import RowWriter, note_environment, read_ledger, write_manifest
from recompute.measure.row import Outcome, Row
from recompute.measure.workload import workload_of

RUN_VARIABLE: Final = "RECOMPUTE_RUN"
CONTROL: Final = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a study is run."""

    out: str
    launcher: Launcher = Launcher.LOCAL
    python: str
    entry: tuple[str, ...] = ()
    steps: int = 8
    warmup_steps: int = 2
    repeats: int = 2
    """Runs of the control, and with ``repeat_all`` of every candidate."""
    repeat_all: bool = False
    limit_seconds: float = 900.0
    seed: int = 0
    ahead: int = 0
    """Runs whose process is started while another still runs; they load everything and wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a study."""

    name: str
    choice: RecomputeChoice
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a run of a study stands: its rows, and whether it had ended before."""

    run: PlannedRun
    rows: tuple[Row, ...]
    skipped: bool


def runs_of(choices: Sequence[RecomputeChoice], settings: Settings) -> tuple[PlannedRun, ...]:
    """Return the runs in order: control, candidates one change at a time, then repeats in random order."""
    others = [choice for choice in dict.fromkeys(choices) if choice != NO_RECOMPUTE]
    first = [_run(choice, 0) for choice in (NO_RECOMPUTE, *others)]
    repeated = (NO_RECOMPUTE, *others) if settings.repeat_all else (NO_RECOMPUTE,)
    later = [_run(choice, n) for n in range(1, settings.repeats) for choice in repeated]
    random.Random(settings.seed).shuffle(later)  # noqa: S311 - an order, not a secret
    return (*first, *later)


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
        WorldError: ``launcher-failed``, ``cannot-write``.
    """
    try:
        workload = workload_of(job)
    except UnsupportedError:
        if not settings.entry:
            raise
        workload = None
    write_manifest(settings.out, environment={}, job_yaml=job_yaml(job, comments=False))
    path = Path(settings.out, "workload.json")
    if workload is not None:
        path.write_text(json.dumps(workload, indent=1) + "\n", encoding="utf-8")
    if end_leftovers(settings.out):
        say("ended a run that an earlier recompute measure had left behind")
    line = _Line(job, settings, runs_of(choices, settings))
    try:
        for run, held in line.runs:
            if held is not None:
                yield Done(run=run, rows=held, skipped=True)
                continue
            say(f"{run.name}: {text_of(run.choice)}")
            told, ended = line.finish(run)
            rows = _conclude(run, told, ended, settings, _world(job))
            if seen := next((row.environment for row in rows if row.environment), None):
                note_environment(settings.out, seen)
            yield Done(run=run, rows=rows, skipped=False)
    finally:
        line.close()


class _Line:
    """The runs of a study in their order, those that come next already started where it is asked for."""

    def __init__(self, job: JobConfig, settings: Settings, runs: Sequence[PlannedRun]) -> None:
        self._job = job
        self._settings = settings
        self._world = _world(job)
        self.runs = [(run, _ended_before(settings.out, run)) for run in runs]
        """Every run, and its rows where it has ended before."""
        self._waiting = [run for run, held in self.runs if held is None]
        self._started: dict[str, tuple[dict[str, Any], Started]] = {}

    def finish(self, run: PlannedRun) -> tuple[dict[str, Any], Ended]:
        """Run one to its end; return what it was told, and how it ended."""
        while self._waiting and len(self._started) <= self._settings.ahead:
            after = self._waiting.pop(0)
            self._started[after.name] = self._start(after)
        told, started = self._started.pop(run.name)
        return told, wait_for(started, self._settings.out, limit=self._settings.limit_seconds)

    def close(self) -> None:
        """End those whose turn never came."""
        while self._started:
            self._started.popitem()[1][1].abandon()

    def _start(self, run: PlannedRun) -> tuple[dict[str, Any], Started]:
        settings = self._settings
        attempts = (row.attempt for row in _rows(settings.out, run))
        told = _told(run, self._job, settings, 1 + max(attempts, default=-1))
        command = command_of(
            settings.launcher,
            python=settings.python,
            world=self._world,
            entry=settings.entry,
            overrides=told["overrides"],
        )
        name = f"{_file_name(run.name)}.{told['attempt']}"
        variables = {RUN_VARIABLE: json.dumps(told)}
        gated = settings.ahead > 0
        return told, start_process(settings.out, name, command, variables, gated=gated)


def _ended_before(root: str, run: PlannedRun) -> tuple[Row, ...] | None:
    held = _rows(root, run)
    return held if held and all(row.final for row in held) and _is_complete(held) else None


def _run(choice: RecomputeChoice, repeat: int) -> PlannedRun:
    name = CONTROL if choice == NO_RECOMPUTE else text_of(choice)
    return PlannedRun(name=f"{name}-{repeat}", choice=choice, repeat=repeat)


def _world(job: JobConfig) -> int:
    from recompute.timeline.static import parallelism_of

    return parallelism_of(job).world


def _told(run: PlannedRun, job: JobConfig, settings: Settings, attempt: int) -> dict[str, Any]:
    """Return what the run's processes are told."""
    stock = run.choice.per_layer is None
    overrides = overrides_for(run.choice, job)["hydra"].split(" ") if stock else []
    return {
        "ledger": str(Path(settings.out).resolve()),
        "run": run.name,
        "candidate": text_of(run.choice),
        "control_id": f"{CONTROL}-0",
        "repeat": run.repeat,
        "attempt": attempt,
        "overrides": overrides,
        "warmup_steps": settings.warmup_steps,
        "steps": settings.steps,
        "seed": settings.seed,
    }


def _conclude(
    run: PlannedRun, told: dict[str, Any], ended: Ended, settings: Settings, world: int
) -> tuple[Row, ...]:
    """Give a final row to every rank that could not write one itself."""
    held = {r.rank: r for r in _rows(settings.out, run) if r.attempt == told["attempt"]}
    missing = [rank for rank in range(world) if rank not in held or not held[rank].final]
    if missing:
        writer = RowWriter(settings.out, "launcher")
        for rank in missing:
            writer.append(_ended_row(held.get(rank), rank, told, ended, world))
        writer.close()
    return _rows(settings.out, run)


def _ended_row(
    partial: Row | None, rank: int, told: Mapping[str, Any], ended: Ended, world: int
) -> Row:
    outcome = Outcome.HANG if ended.timed_out else Outcome.CRASH
    if partial is None:
        partial = Row(
            id=told["run"],
            candidate=told["candidate"],
            control_id=told["control_id"],
            repeat=told["repeat"],
            attempt=told["attempt"],
            rank=rank,
            world_size=world,
            outcome=outcome,
            stage="initialization",
            overrides=tuple(told["overrides"]),
        )
    message = f"exit status {ended.code}: {ended.tail}"
    if ended.timed_out:
        message = f"still ran after {ended.seconds:.0f} s and was ended: {ended.tail}"
    return replace(partial, outcome=outcome, final=True, message=message[:400])


def _rows(root: str, run: PlannedRun) -> tuple[Row, ...]:
    rows = read_ledger(root).rows
    return tuple(row for row in rows if row.id == run.name and row.repeat == run.repeat)


def _is_complete(rows: Sequence[Row]) -> bool:
    return len({row.rank for row in rows}) >= max(row.world_size for row in rows)


def _file_name(text: str) -> str:
    kept = "".join(char if char.isalnum() else "-" for char in text).strip("-")
    return kept[:80] or "run"
