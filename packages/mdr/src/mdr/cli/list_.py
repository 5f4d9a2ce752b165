"""``mdr list``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mdr.cli.options import json_option, place_options, print_document, say

if TYPE_CHECKING:
    from mdr.settings import Settings

SCHEMA = "mdr.list/1"


@click.command("list")
@json_option
@place_options
def command(*, as_json: bool, settings: Settings) -> int:
    """Show what mdr.lock holds, and whether it is on disk unchanged."""
    from mdr.install.documents import entry_document, state_of
    from mdr.install.lock import LOCK_NAME
    from mdr.install.workspace import open_workspace

    workspace = open_workspace(settings)
    lock = workspace.lock()
    states = [state_of(entry, workspace.roots, workspace.cached) for entry in lock.entries]
    if as_json:
        entries = [entry_document(e, s) for e, s in zip(lock.entries, states, strict=True)]
        print_document(SCHEMA, {"lock": LOCK_NAME, "entries": entries})
        return 0
    for entry, state in zip(lock.entries, states, strict=True):
        targets = ", ".join(str(target) for target in entry.targets) or "no target"
        say(f"{entry.ref}@{entry.label}  {entry.grade}  {state}  {targets}  ({entry.pin} pin)")
    if not lock.entries:
        say(f"{LOCK_NAME} holds nothing")
    return 0
