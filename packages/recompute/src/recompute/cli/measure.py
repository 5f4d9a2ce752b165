"""``recompute measure``: matched runs of a job, into a ledger."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from recompute.config.choice import RecomputeChoice
    from recompute.config.schema import JobConfig
    from recompute.measure.study import Settings


@click.command(name="measure")
@click.argument("job")
@click.argument("overrides", nargs=-1)
@click.option("--out", metavar="LEDGER", required=True, help="The ledger: a folder, new or begun.")
@click.option(
    "--candidates",
    metavar="plan|LABELS",
    default="plan",
    show_default=True,
    help="plan: the planner's best. Or a list: mlp,core_attn+mlp,full/uniform/1,per-layer/0-3=mlp.",
)
@click.option(
    "--launcher", type=click.Choice(("local", "torchrun")), help="Default: by the number of GPUs."
)
@click.option("--entry", metavar="SCRIPT", help="Your training script instead of the built-in one.")
@click.option("--python", "interpreter", metavar="EXE", help="Interpreter with torch and Megatron.")
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Runs of the control; two or more give the noise floor.",
)
@click.option("--repeat-all", is_flag=True, help="Repeat the candidates as often as the control.")
@click.option(
    "--limit", type=click.FloatRange(min=1), default=900.0, show_default=True, help="Seconds a run."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of data and of the order.")
@click.option("--budget", metavar="SIZE", help="For --candidates plan.")
@click.option("--gpu", metavar="NAME", help="For --candidates plan.")
@click.option("--top", type=click.IntRange(min=1), default=4, show_default=True, metavar="N")
@click.option(
    "--ahead",
    type=click.IntRange(min=0, max=16),
    default=0,
    show_default=True,
    metavar="N",
    help="Start the processes of the next N runs early; they load everything and wait for their turn.",
)
@click.option("--dry-run", is_flag=True, help="Print the runs and start none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(  # noqa: PLR0917 - click passes by name
    job: str,
    overrides: tuple[str, ...],
    out: str,
    candidates: str,
    launcher: str | None,
    entry: str | None,
    interpreter: str | None,
    steps: int,
    warmup: int,
    repeats: int,
    repeat_all: bool,
    limit: float,
    seed: int,
    budget: str | None,
    gpu: str | None,
    top: int,
    ahead: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure JOB: the control without recompute first, then candidates that differ in that alone.

    Each run is a process group of its own with a time limit; running out of memory, a hang and a crash
    are results. A study that was killed goes on where it was. The built-in workload trains on mock data
    with the job's model, parallelism and optimizer; --entry runs a script of yours, which holds a
    MemoryProbe and takes the overrides as arguments. Exit code 0: every run has an outcome.
    """
    from recompute.config.load import load
    from recompute.config.normalize import normalize
    from recompute.config.require import EXPLAIN, require_complete
    from recompute.measure.launch import Launcher
    from recompute.measure.study import Settings, runs_of
    from recompute.timeline.static import parallelism_of

    config = load(job, *overrides)
    choices = _choices(config, candidates, budget, gpu, top)
    acted = normalize(require_complete(config, EXPLAIN))
    world = parallelism_of(acted).world
    chosen = Launcher(launcher or ("torchrun" if world > 1 else "local"))
    if chosen is Launcher.LOCAL and world > 1:
        raise click.UsageError(f"the job has {world} ranks: --launcher torchrun starts them")
    if ahead and (entry or chosen is not Launcher.LOCAL):
        raise click.UsageError("--ahead is for the built-in trainer in one local process")
    settings = Settings(
        out=out,
        launcher=chosen,
        python=interpreter or sys.executable,
        entry=_words(entry),
        steps=steps,
        warmup_steps=warmup,
        repeats=repeats,
        repeat_all=repeat_all,
        limit_seconds=limit,
        seed=seed,
        ahead=ahead,
    )
    if dry_run:
        for run in runs_of(choices, settings):
            click.echo(run.name)
        return
    _run(acted, choices, settings, as_json=as_json)


def _run(
    job: JobConfig, choices: tuple[RecomputeChoice, ...], settings: Settings, *, as_json: bool
) -> None:
    """Run the study, with progress on standard error, and print its runs."""
    from recompute.measure.study import run_study
    from recompute.report.measure_document import measure_document, measure_text

    done = []
    for item in run_study(job, choices, settings, lambda line: click.echo(line, err=True)):
        done.append(item)
        outcomes = ", ".join(sorted({row.outcome.value for row in item.rows}))
        click.echo(f"  {outcomes}{' (before)' if item.skipped else ''}", err=True)
    if as_json:
        from recompute.report.document import dump

        click.echo(dump(measure_document(job, settings.out, done)))
    else:
        click.echo(measure_text(settings.out, done))


def _words(entry: str | None) -> tuple[str, ...]:
    """Split the user's script and its arguments as a shell would."""
    import shlex

    try:
        return tuple(shlex.split(entry or ""))
    except ValueError as error:
        raise click.UsageError(f"--entry: {error}") from error


def _choices(
    job: JobConfig, text: str, budget: str | None, gpu: str | None, top: int
) -> tuple[RecomputeChoice, ...]:
    """Return the candidates: those named, or the planner's choice and the best beside it."""
    if text != "plan":
        return _named(job, text)
    from recompute.search.plan import plan

    answer = plan(job, budget, gpu=gpu, details=False)
    best = [outcome for outcome in answer.alternatives if not outcome.dominated]
    first = [answer.chosen] if answer.chosen is not None else []
    return tuple(dict.fromkeys(o.choice for o in (*first, *best)))[: top + 1]


def _named(job: JobConfig, text: str) -> tuple[RecomputeChoice, ...]:
    """Read a list of candidates, each legal for the job.

    Raises:
        ConfigError: ``illegal-candidate``: Megatron Core would refuse it, or it does nothing.
    """
    import re

    from recompute.config.choice import with_choice
    from recompute.config.normalize import normalize, revision_of
    from recompute.errors import ConfigError
    from recompute.measure.candidate import choice_of_text
    from recompute.rules.check import check

    choices = tuple(choice_of_text(part) for part in re.split(r",(?![^\[]*\])", text))
    revision, _ = revision_of(job)
    for choice in choices:
        if choice.per_layer is not None:
            continue
        findings = check(with_choice(normalize(job), choice), revision, fixes=False)
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            raise ConfigError(
                "illegal-candidate",
                f"{choice.label()} breaks {errors[0].rule}: {errors[0].message}",
                hint="recompute check says more",
                data={"candidate": choice.label(), "rules": [e.rule for e in errors]},
            )
    return choices
