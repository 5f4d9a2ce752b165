"""``mdr import``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdr.cli.options import json_option, place_options, print_document, say, talk

if TYPE_CHECKING:
    from mdr.settings import Settings

SCHEMA = "mdr.import/1"


@click.command("import")
@click.argument("lockfile", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "agents",
    multiple=True,
    metavar="AGENT",
    help="Agent for what lies in no agent's folder.",
)
@click.option("--no-index", is_flag=True, help="Do not index a repository that the registry lacks.")
@json_option
@place_options
def command(
    *, lockfile: Path, agents: tuple[str, ...], no_index: bool, as_json: bool, settings: Settings
) -> int:
    """Take over another tool's lock: each installed file is matched with a version by its content.

    Reads skills-lock.json, .skill-lock.json, apm.lock.yaml and .clawhub/lock.json. Exit 1 when
    something could not be matched.
    """
    from mdr.install.add import choose_targets
    from mdr.install.import_lock import import_lock
    from mdr.install.workspace import open_workspace

    workspace = open_workspace(replace(settings, index_on_demand=not no_index))
    targets, _ = choose_targets(workspace, agents, user=False)
    imported = import_lock(workspace, lockfile, targets)
    if as_json:
        print_document(SCHEMA, imported.to_document())
        return 1 if imported.unmatched else 0
    for match in imported.matched:
        say(f"matched {match.name}: {match.entry.ref}@{match.entry.label}")
    for item in imported.unmatched:
        say(f"not matched {item.name}: {item.why}")
    if imported.matched:
        talk("next: `mdr verify` compares the folders with the lock, `mdr install` completes them")
    return 1 if imported.unmatched else 0
