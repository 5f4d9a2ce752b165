"""``mdr outdated``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mdr.cli.options import counted, json_option, place_options, print_document, say, talk

if TYPE_CHECKING:
    from mdr.settings import Settings

SCHEMA = "mdr.outdated/1"


@click.command("outdated")
@click.option(
    "--no-index", "--offline", "no_index", is_flag=True, help="Ask no host: use what is indexed."
)
@json_option
@place_options
def command(*, no_index: bool, as_json: bool, settings: Settings) -> int:
    """List the entries of mdr.lock for which there is something newer; exit 1 when there is."""
    from mdr.errors import BadReference
    from mdr.install.outdated import newer
    from mdr.install.refresh import refresh
    from mdr.install.workspace import open_workspace

    workspace = open_workspace(replace(settings, index_on_demand=not no_index))
    lock, registry = workspace.lock(), workspace.registry()
    items, unknown = [], []
    for line in refresh(registry, ((entry.host, entry.repository) for entry in lock.entries)):
        talk(f"note: {line}")
    for entry in lock.entries:
        try:
            found = newer(entry, registry)
        except BadReference as error:
            unknown.append(f"{entry.ref}: {error.message}")
            continue
        if found is not None:
            items.append(found)
    for line in unknown:
        talk(f"not known here: {line}")
    if as_json:
        print_document(SCHEMA, {"items": [item.to_document() for item in items]})
        return 1 if items else 0
    for item in items:
        now, then = item.entry.label, item.latest.label
        said = "its folder changed after the label" if item.folder_only else f"{now} -> {then}"
        say(
            f"{item.entry.ref}  {said}  ({item.entry.pin} pin, grade {item.entry.grade} -> {item.latest.grade})"
        )
    if not items:
        say(f"{counted(len(lock.entries) - len(unknown), 'entry')} at the newest version")
    return 1 if items else 0
