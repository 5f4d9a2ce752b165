"""``mdr mcp``."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from mdr.cli.options import place_options, store_options
from mdr.errors import UsageError

if TYPE_CHECKING:
    from mdr.settings import Settings


@click.command("mcp")
@place_options
@store_options
def command(*, settings: Settings) -> int:
    """Offer a registry to agents as read-only tools, over standard input and output.

    The tools are search, show, resolve, get_by_hash, audit and diff. Nothing is indexed because an
    agent asks. A server offers the same at /mcp.
    """
    from mdr.mcp.server import build
    from mdr.registry.local import settings_for
    from mdr.registry.reading import Reading
    from mdr.registry.stores import open_stores

    settings = settings_for(settings)
    stores = open_stores(settings, create=False)
    if stores is None:
        raise UsageError(
            "registry-empty",
            f"nothing is indexed in {settings.data}",
            hint="run mdr index SOURCE first, or name another folder with --data",
        )
    with closing(stores):
        build(Reading(stores, settings)).run()
    return 0
