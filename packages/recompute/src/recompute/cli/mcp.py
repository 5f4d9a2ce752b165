"""``recompute mcp``: the same commands as tools for agents, over standard input and output."""

from __future__ import annotations

import click


@click.command(name="mcp", short_help="serve the same commands as tools for agents")
def command() -> None:
    """Serve the tools over standard input and output until the client goes away."""
    from recompute.mcp.server import build

    build().run("stdio")
