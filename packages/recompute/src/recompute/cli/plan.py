"""``recompute plan``: the cheapest recompute that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from recompute.cli import streams
from recompute.cli.predictors import calibrate_option, expert_load_option
from recompute.cli.workers import cluster_option, workers_option

if TYPE_CHECKING:
    from recompute.search.types import Plan


ONE_PLAN = "--calibrate and --expert-load are about one plan: give one budget and one GPU"
MANY = "--workers and --cluster are about tables and --joint: one plan is made here at once"


@click.command(name="plan", context_settings={"ignore_unknown_options": False})
@click.argument("job")
@click.argument("overrides", nargs=-1)
@click.option(
    "--budget",
    metavar="SIZE",
    help="Allocated bytes that every rank may reach: 76GiB; a list 60GiB,70GiB or a range "
    "60GiB..76GiB/4GiB gives a table.",
)
@click.option(
    "--gpu",
    metavar="NAME",
    help="Use this GPU's memory and rates: h100-80gb, h200, ...; a list gives a table.",
)
@click.option(
    "--sweep",
    "sweeps",
    metavar="FIELD=V1,V2",
    multiple=True,
    help="Plan for each value of a field: train.micro_batch_size=1,2,4; may be repeated.",
)
@click.option(
    "--margin", metavar="SIZE|FRACTION", help="Keep this much of the budget free: 2GiB, 0.05, 5%."
)
@click.option(
    "--joint",
    "is_joint",
    is_flag=True,
    help="Search TP, PP, VPP, CP, EP and micro-batch too, for hardware.num_gpus.",
)
@click.option("--per-layer", is_flag=True, help="Also mix boundaries over layers and stages.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="List the best N choices.")
@click.option(
    "--mcore", metavar="VERSION", help="Megatron Core revision that decides what is legal."
)
@calibrate_option
@expert_load_option
@workers_option
@cluster_option
@click.option("--html", metavar="FILE", help="Write a page with the picture.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Choose the cheapest recompute that fits every rank of JOB.

    JOB is a job file in any accepted form, recipe:NAME or - for standard input; overrides are
    section.field=value. The memory to fit is --budget (compared with allocated bytes), or that of --gpu
    or hardware.gpu (compared with what the allocator will reserve). Exit code 1: nothing fits.
    """
    asked = Asked(**given)
    _refuse_together(asked)
    if asked.is_joint:
        ctx.exit(_joint(asked))
    from recompute.cli import plan_table

    if plan_table.asks_for_table(asked.budget, asked.gpu, asked.sweeps):
        ctx.exit(_table(asked))
    ctx.exit(_one(asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line said."""

    job: str
    overrides: tuple[str, ...]
    budget: str | None
    gpu: str | None
    sweeps: tuple[str, ...]
    margin: str | None
    is_joint: bool
    per_layer: bool
    top: int | None
    mcore: str | None
    calibrate: str | None
    expert_load: float | None
    workers: int | None
    cluster: str | None
    html: str | None
    as_json: bool

    @property
    def corrects(self) -> bool:
        """Say whether predictions are corrected for one job."""
        return self.calibrate is not None or self.expert_load is not None


def _joint(asked: Asked) -> int:
    from recompute.cli.plan_joint import print_joint
    from recompute.cli.reading import read_job
    from recompute.cli.workers import working

    job = read_job(asked.job, asked.overrides, mcore=asked.mcore)
    with working(asked.workers, asked.cluster) as staff:
        return print_joint(
            job,
            asked.budget,
            asked.gpu,
            asked.margin,
            asked.top or 10,
            workers=staff,
            as_json=asked.as_json,
        )


def _table(asked: Asked) -> int:
    from recompute.cli import plan_table

    return plan_table.print_table(
        plan_table.Options(
            path=asked.job,
            overrides=asked.overrides,
            budget=asked.budget,
            gpu=asked.gpu,
            sweeps=asked.sweeps,
            margin=asked.margin,
            per_layer=asked.per_layer,
            mcore=asked.mcore,
            as_json=asked.as_json,
            html=asked.html,
            workers=asked.workers,
            cluster=asked.cluster,
        )
    )


def _one(asked: Asked) -> int:
    from recompute.cli.predictors import predictor_of
    from recompute.cli.reading import read_job
    from recompute.search.plan import plan
    from recompute.search.types import Status

    job = read_job(asked.job, asked.overrides, mcore=asked.mcore)
    answer = plan(
        job,
        asked.budget,
        gpu=asked.gpu,
        margin=asked.margin,
        per_layer=asked.per_layer,
        predictor_of=predictor_of(job, asked.calibrate, asked.expert_load),
    )
    _print_plan(answer, top=asked.top, html=asked.html, as_json=asked.as_json)
    return 1 if answer.status is Status.INFEASIBLE else 0


def _print_plan(answer: Plan, *, top: int | None, html: str | None, as_json: bool) -> None:
    """Write the page where one is asked for, then print the answer: a failure prints nothing else."""
    if html is not None:
        from recompute.report.page import write_page
        from recompute.report.plan_page import plan_page

        write_page(html, plan_page(answer))
        streams.say(f"wrote {html}\n")
    if as_json:
        from recompute.report.document import dump
        from recompute.report.plan_document import plan_document

        click.echo(dump(plan_document(answer, top=top)))
    else:
        from recompute.report.plan_text import plan_text

        click.echo(plan_text(answer, top=top))


def _refuse_together(asked: Asked) -> None:
    """Refuse options that ask for two different answers."""
    from recompute.cli.plan_table import asks_for_table

    several = asks_for_table(asked.budget, asked.gpu, asked.sweeps)
    if asked.workers is not None and asked.cluster is not None:
        raise click.UsageError("give --workers or --cluster, not both")
    if asked.is_joint and asked.corrects:
        raise click.UsageError("--calibrate and --expert-load are about one layout, not --joint")
    if asked.is_joint and (asked.sweeps or asked.html is not None or asked.per_layer):
        raise click.UsageError("--joint goes with none of --sweep, --html and --per-layer")
    if several and asked.corrects and not asked.is_joint:
        raise click.UsageError(ONE_PLAN)
    if (asked.workers, asked.cluster) != (None, None) and not (several or asked.is_joint):
        raise click.UsageError(MANY)
