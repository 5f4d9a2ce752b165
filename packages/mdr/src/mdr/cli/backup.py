"""``mdr backup``."""

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

SCHEMA = "mdr.backup/1"


@click.command("backup")
@click.argument("target", type=click.Path(path_type=Path), metavar="DIR|FILE.tar")
@json_option
@place_options
@store_options
def command(*, target: Path, as_json: bool, settings: Settings) -> int:
    """Back the registry up, while it is read and written.

    Into a folder: what an earlier backup there has is not copied again, and each backup can be restored.
    Into a new file that ends in .tar: everything. Exit code 1 when blobs that the index names are lost.
    """
    from mdr.cli.index import show_progress
    from mdr.registry.backup import backup

    with show_progress("backup") as progress:
        done = backup(settings, target.absolute(), progress)
    if as_json:
        print_document(SCHEMA, asdict(done))
    else:
        say(
            f"{done.path}: snapshot {done.snapshot}, {counted(done.rows, 'row')}, "
            f"{counted(done.blobs, 'blob')} ({done.new_blobs:,} new, {done.new_bytes:,} bytes)"
        )
    for digest in done.missing:
        talk(f"lost: {digest}; run mdr fsck --repair, then back up again")
    return 1 if done.missing else 0
