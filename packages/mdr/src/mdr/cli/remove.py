"""``mdr remove``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mdr.cli.options import json_option, place_options, print_document, say

if TYPE_CHECKING:
    from mdr.settings import Settings

SCHEMA = "mdr.remove/1"


@click.command("remove")
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@json_option
@place_options
def command(*, refs: tuple[str, ...], as_json: bool, settings: Settings) -> int:
    """Take REF out of mdr.lock and off the disk; files that somebody changed are kept and named."""
    from mdr.install.remove import remove
    from mdr.install.workspace import one_entry, open_workspace

    workspace = open_workspace(settings)
    lock = workspace.lock()
    entries = tuple(dict.fromkeys(one_entry(lock, ref) for ref in refs))
    removed = remove(workspace, entries, workspace.cached)
    if as_json:
        kept = [{"path": item.path, "why": item.why} for item in removed.kept]
        print_document(SCHEMA, {"removed": list(removed.refs), "kept": kept})
        return 0
    for ref in removed.refs:
        say(f"removed {ref}")
    for item in removed.kept:
        say(f"kept {item.path}: {item.why}")
    return 0
