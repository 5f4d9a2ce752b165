"""``recompute check``: the settings of a job against one Megatron Core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from recompute.report.check_document import Checked

FORMATS: Final = ("text", "json", "sarif", "github")


@click.command(short_help="check the settings against a Megatron Core revision")
@click.argument("jobs", metavar="JOB [OVERRIDE]...", nargs=-1, required=True)
@click.option(
    "--mcore",
    metavar="VERSION|PATH",
    help="0.8 to 0.19, a patch version, main, dev, pin, bridge-VERSION (its pin), or a path to your "
    "own checkout or installed package, which is read and never run.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--no-notes", is_flag=True, help="Leave notes out of the text.")
def command(
    jobs: tuple[str, ...], mcore: str | None, form: str, as_json: bool, no_notes: bool
) -> int:
    """Check JOB: which settings fail, which do nothing, and what to paste instead.

    JOB is a job file in any accepted form, recipe:NAME or - for standard input; overrides are
    section.field=value. Several files may be named at once; overrides hold for each.

    Exit status 1 when there is an error.
    """
    from recompute.config.load import load
    from recompute.report.check_run import check_job

    paths, overrides = split_arguments(jobs)
    answers = [check_job(load(path, *overrides), mcore) for path in paths]
    click.echo(_rendered(answers, "json" if as_json else form, notes=not no_notes))
    return 0 if all(answer.ok for answer in answers) else 1


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell job files from overrides: an override holds ``=`` or begins with ``~`` or ``+``."""
    paths = [text for text in arguments if not _is_override(text)]
    if not paths:
        raise click.UsageError("name a job file, recipe:NAME or - before the overrides")
    return paths, [text for text in arguments if _is_override(text)]


def _is_override(text: str) -> bool:
    name, separator, _ = text.partition("=")
    return text.startswith(("~", "+")) or (bool(separator) and "/" not in name)


def _rendered(answers: Sequence[Checked], form: str, *, notes: bool) -> str:
    if form == "json":
        from recompute.report.check_document import check_document, many_document
        from recompute.report.document import dump

        return dump(check_document(answers[0]) if len(answers) == 1 else many_document(answers))
    if form in ("sarif", "github"):
        from recompute.report import check_machine
        from recompute.report.document import dump

        if form == "github":
            return check_machine.github(answers)
        return dump(check_machine.sarif(answers))
    from recompute.report.check_text import check_text

    return "\n\n".join(check_text(answer, notes=notes) for answer in answers)
