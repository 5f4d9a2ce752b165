"""``recompute show``: the job as understood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig


@click.command(short_help="print the job as understood")
@click.argument("job")
@click.argument("overrides", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice(["yaml", "mlm", "bridge"]),
    default="yaml",
    show_default=True,
    help="yaml: a job file that reads back to the same job; mlm: Megatron-LM arguments; "
    "bridge: sections and _target_ entries of Bridge's ConfigContainer.",
)
@click.option("--all", "every", is_flag=True, help="Also fields at their default.")
@click.option("--mcore", metavar="VERSION", help="Fill in as this Megatron Core revision would.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(  # noqa: PLR0917 - click passes every parameter by name
    job: str, overrides: tuple[str, ...], form: str, every: bool, mcore: str | None, as_json: bool
) -> None:
    """Print JOB as understood: every value and where it comes from, what is filled in, what is assumed.

    JOB is a job file in any accepted form, recipe:NAME, or - for standard input. OVERRIDES are
    section.field=value.
    """
    from recompute.cli.reading import read_job
    from recompute.config.normalize import normalize

    understood = normalize(read_job(job, overrides, mcore=mcore))
    if as_json:
        from recompute.report.document import dump
        from recompute.report.show_document import show_document

        click.echo(dump(show_document(understood)))
    else:
        click.echo(_text(understood, form, every=every), nl=False)


def _text(job: JobConfig, form: str, *, every: bool) -> str:
    if form == "mlm":
        from recompute.config.megatron_writer import megatron_arguments

        return megatron_arguments(job)
    from recompute.config.job_writers import bridge_yaml, job_yaml

    return bridge_yaml(job) if form == "bridge" else job_yaml(job, every=every)
