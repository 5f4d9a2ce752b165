"""The options of ``recompute measure``, and the settings that they make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.launch import Launcher
    from recompute.measure.runs import Settings

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
FAILURES: Final = ("crash", "hang", "oom", "nonfinite")
"""Outcomes that may be tried again."""
LAUNCHERS: Final = ("local", "torchrun", "slurm", "nemo-run")

STUDY: Final[tuple[Option, ...]] = (
    click.option(
        "--out", metavar="LEDGER", required=True, help="The ledger: a folder, new or begun."
    ),
    click.option(
        "--candidates",
        metavar="plan|LABELS",
        default="plan",
        show_default=True,
        help="plan: the planner's best. Or a list: mlp,core_attn+mlp,full/uniform/1,per-layer/0-3=mlp.",
    ),
    click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True),
    click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True),
    click.option(
        "--repeats",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        help="Runs of the control; two or more give the noise floor.",
    ),
    click.option(
        "--repeat-all", is_flag=True, help="Repeat the candidates as often as the control."
    ),
    click.option(
        "--retry",
        multiple=True,
        type=click.Choice(FAILURES),
        help="Run again what ended so before: what it failed of was mended.",
    ),
    click.option(
        "--limit",
        type=click.FloatRange(min=1),
        default=900.0,
        show_default=True,
        help="Seconds a run; time in Slurm's queue does not count.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Of the initialisation and of the order of repeats.",
    ),
    click.option(
        "--data-seeds",
        metavar="N,N,...",
        default="0",
        show_default=True,
        help="Seeds of the data's order: everything is measured under each.",
    ),
    click.option("--budget", metavar="SIZE", help="For --candidates plan."),
    click.option("--gpu", metavar="NAME", help="For --candidates plan."),
    click.option("--top", type=click.IntRange(min=1), default=4, show_default=True, metavar="N"),
)
LAUNCH: Final[tuple[Option, ...]] = (
    click.option(
        "--launcher", type=click.Choice(LAUNCHERS), help="Default: by the number of GPUs."
    ),
    click.option("--python", metavar="EXE", help="Interpreter with torch and Megatron."),
    click.option(
        "--entry", metavar="SCRIPT", help="Your training script instead of the built-in one."
    ),
    click.option(
        "--entry-style",
        type=click.Choice(("hydra", "megatron-lm")),
        help="How your script takes a choice. Default: by the form of JOB.",
    ),
    click.option(
        "--seed-argument",
        metavar="TEXT",
        help="How your script takes a seed of the data: 'dataset.random_seed={seed}'.",
    ),
    click.option(
        "--ahead",
        type=click.IntRange(min=0, max=16),
        default=0,
        show_default=True,
        metavar="N",
        help="Start the processes of the next N runs early; they load everything and wait for their turn.",
    ),
    click.option("--partition", metavar="NAME", help="Slurm: of sbatch."),
    click.option("--account", metavar="NAME", help="Slurm: of sbatch."),
    click.option(
        "--gpus-per-node",
        type=click.IntRange(min=1),
        default=8,
        show_default=True,
        help="Slurm: ranks that a node takes.",
    ),
    click.option(
        "--sbatch",
        multiple=True,
        metavar="OPTION",
        help="Slurm: further, such as --sbatch=--mem=0.",
    ),
    click.option(
        "--srun",
        multiple=True,
        metavar="OPTION",
        help="Slurm: further, such as --srun=--container-image=IMAGE.",
    ),
    click.option(
        "--setup", multiple=True, metavar="LINE", help="Slurm: shell line before the run."
    ),
    click.option(
        "--executor",
        metavar="FILE.py:NAME",
        help="NeMo-Run: function that returns an executor. Default: local.",
    ),
    click.option(
        "--nemo-python", metavar="EXE", help="NeMo-Run: interpreter that has it, if not --python."
    ),
)
OUTPUT: Final[tuple[Option, ...]] = (
    click.option(
        "--dry-run", is_flag=True, help="Print the runs, with their batch scripts, and start none."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of them, in their order."""
    for option in reversed((*STUDY, *LAUNCH, *OUTPUT)):
        command = option(command)
    return command


def settings_of(given: Mapping[str, Any], job: JobConfig) -> Settings:
    """Return the settings that the options make.

    Args:
        given: Option -> value, as click passes them.
        job: Complete and normalized.

    Raises:
        click.UsageError: Two options contradict each other, or the job.
    """
    from recompute.measure.runs import Settings
    from recompute.measure.slurm_script import SlurmOptions

    launcher = _launcher(given, job)
    seeds = _seeds(given["data_seeds"])
    if len(seeds) > 1 and given["entry"] and not given["seed_argument"]:
        raise click.UsageError(
            "--data-seeds with --entry: --seed-argument says how your script takes one"
        )
    return Settings(
        out=given["out"],
        launcher=launcher,
        python=given["python"] or sys.executable,
        entry=_words(given["entry"]),
        entry_style=given["entry_style"] or _style(job),
        steps=given["steps"],
        warmup_steps=given["warmup"],
        repeats=given["repeats"],
        repeat_all=given["repeat_all"],
        retry=tuple(given["retry"]),
        limit_seconds=given["limit"],
        seed=given["seed"],
        data_seeds=seeds,
        seed_argument=_template(given["seed_argument"]),
        ahead=given["ahead"],
        slurm=SlurmOptions(
            partition=given["partition"],
            account=given["account"],
            gpus_per_node=given["gpus_per_node"],
            lines=given["sbatch"],
            srun=given["srun"],
            setup=given["setup"],
        ),
        executor=given["executor"],
        driver_python=given["nemo_python"],
    )


def _launcher(given: Mapping[str, Any], job: JobConfig) -> Launcher:
    from recompute.measure.launch import Launcher
    from recompute.timeline.static import parallelism_of

    world = parallelism_of(job).world
    chosen = Launcher(given["launcher"] or ("torchrun" if world > 1 else "local"))
    if chosen is Launcher.LOCAL and world > 1:
        raise click.UsageError(f"the job has {world} ranks: --launcher torchrun starts them")
    if given["ahead"] and (given["entry"] or chosen is not Launcher.LOCAL):
        raise click.UsageError("--ahead is for the built-in trainer in one local process")
    for launcher, names in (
        (Launcher.SLURM, ("partition", "account", "sbatch", "srun", "setup")),
        (Launcher.NEMO_RUN, ("executor", "nemo_python")),
    ):
        used = [name for name in names if given[name]]
        if used and chosen is not launcher:
            option = used[0].replace("_", "-")
            raise click.UsageError(f"--{option} goes with --launcher {launcher}")
    return chosen


def _style(job: JobConfig) -> str:
    """Say how a script that the job was read from takes a choice."""
    return "megatron-lm" if job.identity.format.startswith("megatron") else "hydra"


def _seeds(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise click.UsageError("--data-seeds takes whole numbers from 0: 0,1,2")
    seeds = tuple(int(part) for part in parts)
    if len(set(seeds)) != len(seeds):
        raise click.UsageError("--data-seeds names a seed twice")
    return seeds


def _template(text: str | None) -> str | None:
    if text is not None and (text.count("{seed}") != 1 or text.count("{") != 1):
        raise click.UsageError("--seed-argument holds {seed} once, and no other braces")
    return text


def _words(entry: str | None) -> tuple[str, ...]:
    """Split the user's script and its arguments as a shell would."""
    import shlex

    try:
        return tuple(shlex.split(entry or ""))
    except ValueError as error:
        raise click.UsageError(f"--entry: {error}") from error
