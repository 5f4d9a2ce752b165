"""``mdr restore``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdr.cli.options import (
    counted,
    json_option,
    place_options,
    print_document,
    say,
    store_options,
    talk,
)

if TYPE_CHECKING:
    from mdr.settings import Settings

SCHEMA = "mdr.restore/1"


@click.command("restore")
@click.argument("source", type=click.Path(exists=True, path_type=Path), metavar="DIR|FILE.tar")
@click.option(
    "--snapshot", metavar="NAME", help="An older one of the folder; the newest otherwise."
)
@click.option(
    "--check", "check_only", is_flag=True, help="Read and verify all of it, write nothing."
)
@json_option
@place_options
@store_options
def command(
    *, source: Path, snapshot: str | None, check_only: bool, as_json: bool, settings: Settings
) -> int:
    """Restore a backup into an empty registry, on any database and any blob store.

    Every blob is compared with its hash, every table with the manifest. Run again after a kill, it goes
    on where it was.
    """
    from mdr.cli.index import show_progress
    from mdr.registry.restore import restore

    with show_progress("restore") as progress:
        done = restore(
            settings, source.absolute(), progress, snapshot=snapshot, check_only=check_only
        )
    if as_json:
        print_document(SCHEMA, asdict(done))
    else:
        verb = "checked" if done.checked_only else "restored"
        say(
            f"{verb} snapshot {done.snapshot}: {counted(done.rows, 'row')}, {counted(done.blobs, 'blob')}"
        )
    for digest in done.missing:
        talk(f"was lost before the backup: {digest}; run mdr fsck --repair")
    return 0
