"""``recompute compare``: what a ledger's matched runs say."""

from __future__ import annotations

import click

from recompute.cli import streams


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
    from recompute.report.compare_run import compare_ledger

    answer = compare_ledger(ledger, allow_differences=allow_differences)
    if html is not None:
        from recompute.report.compare_page import compare_page
        from recompute.report.page import write_page

        write_page(html, compare_page(answer))
        streams.say(f"wrote {html}\n")
    if as_json or form == "json":
        from recompute.report.compare_document import compare_document
        from recompute.report.document import dump

        click.echo(dump(compare_document(answer)))
    else:
        from recompute.report.compare_text import compare_markdown, compare_text

        click.echo(compare_markdown(answer) if form == "markdown" else compare_text(answer))
    if not answer.any_passes:
        ctx.exit(1)
