"""``recompute rules``: the rule table, and what changes between two revisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig


@click.command(short_help="the rule table, and what changes between revisions")
@click.argument("arguments", metavar="[JOB [OVERRIDE]...]", nargs=-1)
@click.option("--mcore", metavar="VERSION|PATH", help="Only the rules of this revision.")
@click.option(
    "--diff",
    "pair",
    metavar="V1 V2",
    nargs=2,
    type=str,
    help="What changes from one revision to another; with JOB, for that job's settings.",
)
@click.option("--rule", "name", metavar="ID", help="Only this rule.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    arguments: tuple[str, ...],
    mcore: str | None,
    pair: tuple[str, str] | None,
    name: str | None,
    as_json: bool,
) -> None:
    """List the rules, or say what changes between two Megatron Core revisions.

    With --diff and JOB: which of the job's settings stop being legal or change meaning.
    """
    if pair is None:
        if arguments:
            raise click.UsageError(
                "a job is read with --diff V1 V2 only; recompute check checks it"
            )
        click.echo(_table(mcore, name, as_json=as_json))
        return
    from recompute.cli.check import split_arguments

    paths, overrides = split_arguments(arguments) if arguments else ([], [])
    if len(paths) > 1:
        raise click.UsageError("--diff takes one job")
    job = None
    if paths:
        from recompute.config.load import load

        job = load(paths[0], *overrides)
    click.echo(_difference(pair, job, as_json=as_json))


def _table(mcore: str | None, name: str | None, *, as_json: bool) -> str:
    from recompute.report import rules_document as report
    from recompute.rules.diff import rules_of
    from recompute.rules.table import RULES

    revision = None
    if mcore is not None:
        from recompute.report.check_run import target_of

        revision = target_of(mcore).revision.name
    rules = RULES if revision is None else rules_of(revision)
    if name is not None:
        rules = tuple(rule for rule in rules if rule.id == name)
        if not rules:
            raise click.UsageError(f"no rule {name[:60]!r}; recompute rules lists them")
    if as_json:
        from recompute.report.document import dump

        return dump(report.rules_document(rules, revision))
    return report.rules_text(rules, revision)


def _difference(pair: tuple[str, str], job: JobConfig | None, *, as_json: bool) -> str:
    from recompute.report import rules_document as report
    from recompute.report.check_run import target_of
    from recompute.rules.diff import diff

    before, after = (target_of(text).revision for text in pair)
    answer = diff(before, after, job)
    if as_json:
        from recompute.report.document import dump, envelope

        identity = None if job is None else envelope("rules", job)["job"]
        return dump(report.diff_document(answer, before.name, after.name, identity))
    path = None if job is None else job.identity.path
    return report.diff_text(answer, before.name, after.name, path)
