"""``mdr diff``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mdr.cli.options import json_option, place_options, print_document, say

if TYPE_CHECKING:
    from mdr.install.compare import Comparison
    from mdr.settings import Settings

SCHEMA = "mdr.diff/1"


@click.command("diff")
@click.argument("ref")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--exit-code", "exit_code", is_flag=True, help="Exit 1 when the versions differ.")
@click.option("--no-index", is_flag=True, help="Do not index a repository that the registry lacks.")
@json_option
@place_options
def command(
    *,
    ref: str,
    before: str,
    after: str,
    exit_code: bool,
    no_index: bool,
    as_json: bool,
    settings: Settings,
) -> int:
    """Compare version A of REF with B: lines, meaning, files. A and B are labels or sha256:HEX."""
    from mdr.install.compare import compare_references
    from mdr.install.workspace import open_workspace
    from mdr.reference.parse import parse, parse_selector

    reference = parse(ref)
    one, two = (
        replace(reference, selector=parse_selector(text.removeprefix("@")))
        for text in (before, after)
    )
    workspace = open_workspace(replace(settings, index_on_demand=not no_index))
    comparison = compare_references(workspace.registry(), one, two)
    if as_json:
        print_document(SCHEMA, comparison.to_document())
    else:
        _report(comparison)
    return 1 if exit_code and comparison.differs else 0


def _report(comparison: Comparison) -> None:
    from mdr.cli.update import printable, semantic_lines

    say(f"{comparison.artifact.ref}: {comparison.before.label} -> {comparison.after.label}")
    say(f"lines +{comparison.added_lines} -{comparison.removed_lines}")
    for line in semantic_lines(comparison.semantic.to_document()):
        say(line)
    for change in comparison.files:
        say(f"{change.change} {change.path}")
    for line in comparison.unified.splitlines():
        say(printable(line))
