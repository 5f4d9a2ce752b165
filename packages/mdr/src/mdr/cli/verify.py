"""``mdr verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mdr.cli.options import counted, json_option, place_options, print_document, say

if TYPE_CHECKING:
    from mdr.install.verify import Verdict
    from mdr.settings import Settings

SCHEMA = "mdr.verify/1"


@click.command("verify")
@click.option("--offline", is_flag=True, help="Accepted for clarity: verify never uses a network.")
@json_option
@place_options
def command(*, offline: bool, as_json: bool, settings: Settings) -> int:  # noqa: ARG001 - always so
    """Hash every installed file and recompute every grade; name whatever differs from mdr.lock."""
    from mdr.install.verify import verify
    from mdr.install.workspace import open_workspace

    workspace = open_workspace(settings)
    verdict = verify(workspace.lock(), workspace.roots, workspace.cached)
    if as_json:
        print_document(SCHEMA, verdict.to_document())
    else:
        _report(verdict)
    return 0 if verdict.ok else 1


def _report(verdict: Verdict) -> None:
    for trouble in verdict.troubles:
        expected = f", expected {trouble.expected}" if trouble.expected else ""
        actual = f", is {trouble.actual}" if trouble.actual else ""
        where = f" ({trouble.target})" if trouble.target else ""
        why = f"; {trouble.why}" if trouble.why else ""
        say(f"{trouble.problem:8} {trouble.path}{where}{expected}{actual}{why}")
    checked = (
        counted(verdict.artifacts, "artifact"),
        counted(verdict.files, "file"),
        counted(verdict.bytes, "byte"),
    )
    answer = "ok" if verdict.ok else counted(len(verdict.troubles), "problem")
    say(f"{answer}: {', '.join(checked)} checked")
