"""The runs of a study in their order, given to what starts them. An edge module."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from recompute.config.schema import JobConfig
from recompute.errors import WorldError
from recompute.measure import slurm
from recompute.measure.conclude import rows_of, settle
from recompute.measure.launch import (
    RUN_VARIABLE,
    Ended,
    Launcher,
    Started,
    command_of,
    end_leftovers,
    start_process,
    target_of,
    wait_for,
)
from recompute.measure.ledger import read_ledger, writing
from recompute.measure.runs import VOLATILE, PlannedRun, Settings, told_to, words_of
from recompute.measure.slurm_script import BatchJob, script_of

NEMO_DRIVER: Final = "recompute.measure.nemo_driver"
SETTLE_SECONDS: Final = 30.0
"""How long rows of a job that ended well may take to be seen on a shared file system."""


class Line(Protocol):
    """What runs the runs of a study, one after the other."""

    world: int
    """Ranks of a run."""

    def finish(self, run: PlannedRun) -> tuple[dict[str, Any], Ended]:
        """Run one to its end; return what it was told, and how it ended."""
        ...

    def close(self) -> None:
        """End those whose turn never came."""


class LocalLine:
    """Runs that start on this machine, those that come next already started where it is asked for.

    Args:
        job: Complete and normalized.
        settings: How.
        runs: In their order.
        say: Takes lines of progress.
    """

    def __init__(
        self,
        job: JobConfig,
        settings: Settings,
        runs: Sequence[PlannedRun],
        say: Callable[[str], None],
    ) -> None:
        self._job = job
        self._settings = settings
        self._waiting = list(runs)
        self._started: dict[str, tuple[dict[str, Any], Started]] = {}
        self.world = world_of(job)

    def finish(self, run: PlannedRun) -> tuple[dict[str, Any], Ended]:
        """Run one to its end."""
        if run.name not in self._started and run not in self._waiting:
            self._waiting.insert(0, run)  # once more
        while self._waiting and len(self._started) <= self._settings.ahead:
            after = self._waiting.pop(0)
            self._started[after.name] = self._start(after, len(self._started))
        told, started = self._started.pop(run.name)
        return told, wait_for(started, self._settings.out, limit=self._settings.limit_seconds)

    def close(self) -> None:
        """End those whose turn never came."""
        while self._started:
            self._started.popitem()[1][1].abandon()
        end_leftovers(self._settings.out)  # interrupted between a run's start and the wait for it

    def _start(self, run: PlannedRun, ahead: int) -> tuple[dict[str, Any], Started]:
        settings = self._settings
        told = _told(run, self._job, settings, ahead)
        target = target_of(*words_of(run, told, self._job, settings))
        stem = stem_of(told)
        variables = {RUN_VARIABLE: json.dumps(told)}
        if settings.launcher is Launcher.NEMO_RUN:
            command = self._nemo_command(stem, target, variables)
        else:
            command = command_of(
                settings.launcher, python=settings.python, world=self.world, target=target
            )
        return told, start_process(settings.out, stem, command, variables, gated=settings.ahead > 0)

    def _nemo_command(
        self, stem: str, target: Sequence[str], variables: dict[str, str]
    ) -> list[str]:
        """Write what NeMo-Run's driver is to do, and return its command."""
        settings = self._settings
        spec = {
            "title": "recompute-measure",
            "python": settings.python,
            "target": list(target),
            "folder": str(Path.cwd()),
            "variables": variables,
            "world": self.world,
            "executor": settings.executor,
        }
        path = Path(settings.out, "logs", f"{stem}.nemo.json")
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        return [settings.driver_python or settings.python, "-m", NEMO_DRIVER, str(path)]


class BatchLine:
    """Runs as jobs of Slurm, one at a time: equal nodes would not be equal under each other's load.

    Args:
        job: Complete and normalized.
        settings: How.
        runs: In their order.
        say: Takes lines of progress.
    """

    def __init__(
        self,
        job: JobConfig,
        settings: Settings,
        runs: Sequence[PlannedRun],
        say: Callable[[str], None],
    ) -> None:
        self._job = job
        self._settings = settings
        self._say = say
        self._silent = False
        self.world = world_of(job)

    def finish(self, run: PlannedRun) -> tuple[dict[str, Any], Ended]:
        """Submit one, or take on the job that is already there, and wait for its end.

        Raises:
            WorldError: ``slurm-silent``, ``slurm-refused``, ``launcher-failed``, ``cannot-write``.
        """
        try:
            return self._finish(run)
        except WorldError as error:
            self._silent = error.code == slurm.SILENT
            raise

    def _finish(self, run: PlannedRun) -> tuple[dict[str, Any], Ended]:
        settings = self._settings
        told = _told(run, self._job, settings, 0)
        found = slurm.adopt(settings.out, told, VOLATILE)
        if found is not None:
            submitted, told = found
            self._say(f"  job {submitted.job} was already there")
        else:
            name = slurm.job_name(settings.out)
            script = batch_script(run, told, self._job, settings, name)
            submitted = slurm.submit(settings.out, stem_of(told), name, script, told)
            self._say(f"  job {submitted.job}")
        ended = slurm.wait_for_job(
            submitted,
            settings.out,
            limit=settings.limit_seconds,
            say=self._say,
            patience=slurm.SILENCE_SECONDS,
        )
        if ended.code == 0 and ended.outcome is None:
            settle(settings.out, run, SETTLE_SECONDS)
        return told, ended

    def close(self) -> None:
        """Cancel what an earlier ``recompute measure`` left behind and none of the runs took on.

        Behind a controller that does not answer the job is this study's own, and stays for its next start.
        """
        if not self._silent and (left := slurm.cancel_leftover(self._settings.out)):
            self._say(left)


def batch_script(
    run: PlannedRun, told: dict[str, Any], job: JobConfig, settings: Settings, name: str
) -> str:
    """Return the batch script of a run.

    Raises:
        ConfigError: ``nodes-uneven``; ``bad-sbatch-line``.
    """
    log = Path(settings.out, "logs", f"{stem_of(told)}.log").resolve()
    batch = BatchJob(
        name=name,
        log=str(log),
        python=settings.python,
        target=target_of(*words_of(run, told, job, settings)),
        world=world_of(job),
        variables={RUN_VARIABLE: json.dumps(told)},
        limit_seconds=settings.limit_seconds,
    )
    return script_of(batch, settings.slurm)


def world_of(job: JobConfig) -> int:
    """Return the ranks of a job."""
    from recompute.timeline.static import parallelism_of

    return parallelism_of(job).world


def stem_of(told: dict[str, Any]) -> str:
    """Return a name for files of one start of a run."""
    kept = "".join(char if char.isalnum() else "-" for char in told["run"]).strip("-")
    return f"{kept[:80] or 'run'}.{told['attempt']}"


def _told(run: PlannedRun, job: JobConfig, settings: Settings, ahead: int) -> dict[str, Any]:
    """Return what a run is told when it starts now, behind ``ahead`` others that have not begun."""
    attempts = (row.attempt for row in rows_of(settings.out, run))
    orders = (row.order for row in read_ledger(settings.out).rows if row.order is not None)
    order = 1 + max(orders, default=-1) + ahead
    return told_to(run, job, settings, attempt=1 + max(attempts, default=-1), order=order)
