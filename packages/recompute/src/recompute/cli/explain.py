"""``recompute explain``: where the peak is and what each label would do there."""

from __future__ import annotations

import click

from recompute.cli import streams
from recompute.cli.predictors import calibrate_option, expert_load_option


@click.command(name="explain")
@click.argument("job")
@click.argument("overrides", nargs=-1)
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Show this global rank only.")
@click.option(
    "--gpu", metavar="NAME", help="Say how far the peak is over or under this GPU's memory."
)
@click.option(
    "--mcore", metavar="VERSION", help="Megatron Core revision that decides what is legal."
)
@calibrate_option
@expert_load_option
@click.option("--html", metavar="FILE", help="Write a page with the timeline picture.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(  # noqa: PLR0917 - click passes by name
    job: str,
    overrides: tuple[str, ...],
    rank: int | None,
    gpu: str | None,
    mcore: str | None,
    calibrate: str | None,
    expert_load: float | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Say where JOB's peak is, what is alive there, and what each label would save and cost.

    JOB is a job file in any accepted form, recipe:NAME or - for standard input; overrides are
    section.field=value.
    """
    from recompute.cli.predictors import predictor_of
    from recompute.cli.reading import read_job
    from recompute.search.budget import budget_of
    from recompute.search.explain import explain

    config = read_job(job, overrides, mcore=mcore)
    limit = budget_of(config, gpu=gpu) if gpu is not None else None
    maker = predictor_of(config, calibrate, expert_load)
    answer = explain(
        config,
        rank=rank,
        predictor_of=maker,
        balanced_of=predictor_of(config, calibrate, 1.0) if expert_load is not None else None,
    )
    if html is not None:
        from recompute.report.explain_page import explain_page
        from recompute.report.page import write_page

        write_page(html, explain_page(answer, None if maker is None else maker(answer.job), limit))
        streams.say(f"wrote {html}\n")
    if as_json:
        from recompute.report.document import dump
        from recompute.report.explain_document import explain_document

        click.echo(dump(explain_document(answer, limit)))
    else:
        from recompute.report.explain_text import explain_text

        click.echo(explain_text(answer, limit))
