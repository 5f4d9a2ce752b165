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
from mdr.errors import UsageError

if TYPE_CHECKING:
    from mdr.settings import Settings

SCHEMA = "mdr.backup/1"


@click.command("backup")
@click.argument("target", type=click.Path(path_type=Path), metavar="DIR|FILE.tar")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Of a folder: afterwards remove all but the N newest complete snapshots.")  # fmt: skip
@json_option
@place_options
@store_options
def command(*, target: Path, keep: int | None, as_json: bool, settings: Settings) -> int:
    """Back the registry up, while it is read and written.

    Into a folder: what an earlier backup there has is not copied again, and each backup can be restored.
    Into a new file that ends in .tar: everything. Exit code 1 when blobs that the index names are lost;
    nothing is removed then.
    """
    if keep is not None and target.suffix == ".tar":
        raise UsageError("usage", "--keep is for folders", hint="a .tar file holds one snapshot")
    from mdr.cli.index import show_progress
    from mdr.registry.backup import backup
    from mdr.registry.pruning import prune

    with show_progress("backup") as progress:
        done = backup(settings, target.absolute(), progress)
    removed = () if keep is None or done.missing else prune(target.absolute(), keep)
    if as_json:
        print_document(SCHEMA, {**asdict(done), "removed": list(removed)})
    else:
        say(
            f"{done.path}: snapshot {done.snapshot}, {counted(done.rows, 'row')}, "
            f"{counted(done.blobs, 'blob')} ({done.new_blobs:,} new, {done.new_bytes:,} bytes)"
        )
        for name in removed:
            talk(f"removed snapshot {name}")
    for digest in done.missing:
        talk(f"lost: {digest}; run mdr fsck --repair, then back up again")
    return 1 if done.missing else 0
