"""``recompute measure``: matched runs of a job, into a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from recompute.cli import streams
from recompute.cli.measure_options import options

if TYPE_CHECKING:
    from recompute.config.choice import RecomputeChoice
    from recompute.config.schema import JobConfig
    from recompute.measure.runs import Settings


@click.command(name="measure")
@click.argument("job")
@click.argument("overrides", nargs=-1)
@options
@click.pass_context
def command(ctx: click.Context, /, job: str, overrides: tuple[str, ...], **given: Any) -> None:
    """Measure JOB: the control without recompute first, then candidates that differ in that alone.

    Each run is a process group, or a job of Slurm, of its own with a time limit; running out of memory, a
    hang and a crash are results. A study that was killed goes on where it was. The built-in workload trains
    on mock data with the job's model, parallelism and optimizer; --entry runs a script of yours, which holds
    a MemoryProbe and takes the overrides as arguments. Exit code 0: every run has an outcome; 3: some were
    ended from outside, and the same command repeats them.
    """
    from recompute.cli.measure_options import settings_of
    from recompute.config.load import load
    from recompute.config.normalize import normalize
    from recompute.config.require import EXPLAIN, require_complete
    from recompute.measure.launch import signals_interrupt

    config = load(job, *overrides)
    choices = _choices(config, given["candidates"], given["budget"], given["gpu"], given["top"])
    acted = normalize(require_complete(config, EXPLAIN))
    settings = settings_of(given, acted)
    if given["dry_run"]:
        _show(acted, choices, settings, as_json=given["as_json"])
        return
    with signals_interrupt():
        interrupted = _run(acted, choices, settings, as_json=given["as_json"])
    if interrupted:
        streams.say(
            f"{interrupted} run(s) were ended from outside: the same command repeats them\n"
        )
        ctx.exit(3)


def _show(
    job: JobConfig, choices: tuple[RecomputeChoice, ...], settings: Settings, *, as_json: bool
) -> None:
    """Print what would be run."""
    from recompute.measure.dry_run import preview
    from recompute.report.measure_document import preview_document, preview_text

    runs = preview(job, choices, settings)
    if as_json:
        from recompute.report.document import dump

        click.echo(dump(preview_document(job, settings.out, runs)))
    else:
        click.echo(preview_text(runs))


def _run(
    job: JobConfig, choices: tuple[RecomputeChoice, ...], settings: Settings, *, as_json: bool
) -> int:
    """Run the study, with progress on standard error, print its runs; return how many were interrupted."""
    from recompute.measure.study import run_study
    from recompute.report.measure_document import measure_document, measure_text

    done = []
    for item in run_study(job, choices, settings, lambda line: streams.say(f"{line}\n")):
        done.append(item)
        outcomes = ", ".join(sorted({row.outcome.value for row in item.rows}))
        streams.say(f"  {outcomes}{' (before)' if item.skipped else ''}\n")
        if item.unlike:
            streams.say(f"  {item.unlike}\n")
    if as_json:
        from recompute.report.document import dump

        click.echo(dump(measure_document(job, settings.out, done)))
    else:
        click.echo(measure_text(settings.out, done))
    return sum(item.interrupted for item in done)


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
