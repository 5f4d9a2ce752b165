"""``mdr fsck``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mdr.cli.options import json_option, place_options, print_document, say, store_options

if TYPE_CHECKING:
    from mdr.registry.checking import Checked
    from mdr.settings import Settings

SCHEMA = "mdr.fsck/1"


@click.command("fsck")
@click.option("--repair", is_flag=True, help="Put right what can be put right without loss.")
@json_option
@place_options
@store_options
def command(*, repair: bool, as_json: bool, settings: Settings) -> int:
    """Check the data folder: every hash, every manifest, every reference between them."""
    from mdr.registry.checking import check

    done = check(settings, repair=repair)
    if as_json:
        print_document(SCHEMA, _document(done))
    else:
        _report(done)
    return 0 if done.ok else 1


def _document(done: Checked) -> dict[str, Any]:
    return {
        "ok": done.ok,
        "blobs": done.blobs,
        "manifests": done.manifests,
        "versions": done.versions,
        "problems": [
            {"problem": each.problem, "what": each.what, "repaired": each.repaired}
            for each in done.problems
        ],
    }


def _report(done: Checked) -> None:
    for each in done.problems:
        say(f"{'repaired' if each.repaired else 'problem '}  {each.problem}: {each.what}")
    state = "clean" if done.ok else "not clean; try mdr fsck --repair"
    say(f"{done.blobs:,} blobs, {done.manifests:,} manifests, {done.versions:,} versions: {state}")
