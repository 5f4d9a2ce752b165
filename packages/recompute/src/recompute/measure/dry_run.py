"""What a study would run, without running it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import JobConfig
from recompute.measure.launch import Launcher, command_of, target_of
from recompute.measure.lines import batch_script, world_of
from recompute.measure.runs import PlannedRun, Settings, first_runs, later_runs, told_to, words_of

JOB_NAME: Final = "recompute-measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """One run that would be started."""

    run: PlannedRun
    command: str
    """As a shell would take it, without ``RECOMPUTE_RUN``; the script where there is one."""
    script: str | None
    """The batch script."""


def preview(
    job: JobConfig, choices: Sequence[RecomputeChoice], settings: Settings
) -> tuple[Preview, ...]:
    """Return the runs in their order, as if the control fits.

    Raises:
        ConfigError: ``nodes-uneven``; ``bad-sbatch-line``.
    """
    runs = (*first_runs(choices, settings), *later_runs(choices, settings))
    return tuple(_preview(run, order, job, settings) for order, run in enumerate(runs))


def _preview(run: PlannedRun, order: int, job: JobConfig, settings: Settings) -> Preview:
    told = told_to(run, job, settings, attempt=0, order=order)
    target = target_of(*words_of(run, told, job, settings))
    if settings.launcher is Launcher.SLURM:
        script = batch_script(run, told, job, settings, JOB_NAME)
        return Preview(run=run, command="sbatch", script=script)
    if settings.launcher is Launcher.NEMO_RUN:
        words = [settings.python, *target]
    else:
        words = command_of(
            settings.launcher, python=settings.python, world=world_of(job), target=target
        )
    return Preview(run=run, command=shlex.join(words), script=None)
