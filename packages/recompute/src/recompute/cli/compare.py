"""``recompute compare``: what a ledger's matched runs say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.ledger import Ledger


@click.command(name="compare")
@click.argument("ledger")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "markdown", "json")),
    default="text",
    help="markdown is a table for a pull request.",
)
@click.option(
    "--allow-differences",
    is_flag=True,
    help="Compare runs that differ in more than the recompute choice, and name the differences.",
)
@click.option("--html", metavar="FILE", help="Write a page with pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(  # noqa: PLR0917 - click passes by name
    ctx: click.Context,
    ledger: str,
    form: str,
    allow_differences: bool,
    html: str | None,
    as_json: bool,
) -> None:
    """Compare the runs of LEDGER with their control: peak, step time, verdict, prediction.

    LEDGER is a folder that recompute measure or MemoryProbe wrote. A candidate passes only after
    optimizer initialisation and three steady steps on every rank. Exit code 1: no candidate passes.
    """
    from recompute.measure.compare import compare
    from recompute.measure.ledger import read_ledger

    held = read_ledger(ledger)
    answer = compare(held, job=_job_of(held), allow_differences=allow_differences)
    if as_json or form == "json":
        from recompute.report.compare_document import compare_document
        from recompute.report.document import dump

        click.echo(dump(compare_document(answer)))
    else:
        from recompute.report.compare_text import compare_markdown, compare_text

        click.echo(compare_markdown(answer) if form == "markdown" else compare_text(answer))
    if html is not None:
        from recompute.report.compare_page import compare_page
        from recompute.report.page import write_page

        write_page(html, compare_page(answer))
        click.echo(f"wrote {html}", file=sys.stderr)
    if not answer.any_passes:
        ctx.exit(1)


def _job_of(ledger: Ledger) -> JobConfig | None:
    """Return the job that the ledger holds, as Megatron would act on it."""
    if ledger.job_path is None:
        return None
    from recompute.config.load import load
    from recompute.config.normalize import normalize
    from recompute.config.require import EXPLAIN, require_complete

    return normalize(require_complete(load(ledger.job_path), EXPLAIN))
