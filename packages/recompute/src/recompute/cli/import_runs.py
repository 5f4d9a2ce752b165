"""``recompute import``: runs from logs, TensorBoard event files and other ledgers, as rows of a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from recompute.imports.series import Series
    from recompute.measure.row import Row


@click.command(name="import")
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", metavar="LEDGER", required=True, help="The ledger: a folder, new or begun.")
@click.option(
    "--candidate",
    metavar="CHOICE",
    help="What the run of logs or event files recomputed: [], [mlp], full/block/4, per-layer/0-3=mlp.",
)
@click.option(
    "--run", "name", metavar="ID", help="Names the run. Default: by candidate and repeat."
)
@click.option("--repeat", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--control",
    metavar="ID",
    default="control-0",
    show_default=True,
    help="Id of the control that it is matched with.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Leading reports that are warm-up.",
)
@click.option("--job", metavar="JOB", help="The job that ran, for predictions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(sources: tuple[str, ...], *, as_json: bool, **given: Any) -> None:
    """Take one run into a ledger, from the logs that Megatron-LM or Bridge printed, or from event files.

    SOURCES are the files of one run, or folders of them. The rows are marked as imported, and compare says
    what they cannot prove. A later import of the same run takes its place. Or SOURCES is another ledger of
    the same job: all of its runs become further repeats, as they were measured; those there already do not.
    """
    from recompute.imports.merge import is_ledger, merge_ledger
    from recompute.report.import_document import import_document, import_text

    if len(sources) == 1 and is_ledger(sources[0]):
        if given["candidate"] or given["name"] or given["job"]:
            raise click.UsageError(
                "a ledger says itself what was run: no --candidate, --run or --job"
            )
        series, rows = merge_ledger(sources[0], given["out"])
    else:
        series, rows = _reported(sources, given)
    if as_json:
        from recompute.report.document import dump

        click.echo(dump(import_document(given["out"], series, rows)))
    else:
        click.echo(import_text(given["out"], series, rows))


def _reported(sources: tuple[str, ...], given: dict[str, Any]) -> tuple[Series, tuple[Row, ...]]:
    """Take the run that logs or event files report."""
    from recompute.config.choice import NO_RECOMPUTE
    from recompute.imports.rows import ImportedRun
    from recompute.imports.run import import_run
    from recompute.measure.candidate import choice_of_text, text_of

    if given["candidate"] is None:
        raise click.UsageError("--candidate says what the run recomputed: [] for no recompute")
    choice = choice_of_text(given["candidate"])
    repeat = given["repeat"]
    default = "control" if choice == NO_RECOMPUTE else text_of(choice)
    run = ImportedRun(
        id=given["name"] or f"{default}-{repeat}",
        candidate=text_of(choice),
        control_id=given["control"],
        repeat=repeat,
        warmup_steps=given["warmup"],
    )
    return import_run(sources, given["out"], run, job_yaml=_job_yaml(given["job"]))


def _job_yaml(path: str | None) -> str | None:
    """Return the job as a ledger holds it: as Megatron would act on it."""
    if path is None:
        return None
    from recompute.config.job_writers import job_yaml
    from recompute.config.load import load
    from recompute.config.normalize import normalize
    from recompute.config.require import EXPLAIN, require_complete

    return job_yaml(normalize(require_complete(load(path), EXPLAIN)), comments=False)
