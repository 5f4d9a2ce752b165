"""The ``recompute`` command: one module per command, imported only when it runs."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

import click

from recompute import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "show": ("recompute.cli.show", "print the job as understood"),
    "check": ("recompute.cli.check", "check the settings against a Megatron Core revision"),
    "explain": ("recompute.cli.explain", "peak per rank and phase, and what each label would do"),
    "plan": ("recompute.cli.plan", "choose the cheapest recompute that fits"),
    "measure": ("recompute.cli.measure", "run matched measurements of a job"),
    "import": ("recompute.cli.import_runs", "take runs from logs and event files into a ledger"),
    "compare": ("recompute.cli.compare", "hold measured candidates against their control"),
    "diagnose": ("recompute.cli.diagnose", "find why a run went out of memory"),
    "rules": ("recompute.cli.rules", "the rule table, and what changes between revisions"),
    "mcp": ("recompute.cli.mcp", "serve the same commands as tools for agents"),
}
"""Command name -> (module that defines ``command``, one line for --help)."""

OTHER_NAMES: Final[Mapping[str, str]] = {
    "validate": "check",
    "lint": "check",
    "run": "measure",
    "bench": "measure",
    "diff": "compare",
    "analyze": "explain",
    "search": "plan",
}
"""What other tools call a command -> ours; named in a hint, never run."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a name that is none say which one may be meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            other = [OTHER_NAMES[name]] if name in OTHER_NAMES else []
            near = other or get_close_matches(name, COMMANDS, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {name[:60]!r}{meant}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="recompute")
def cli() -> None:
    """Check, predict, plan and diagnose activation recompute for Megatron."""


def run() -> None:
    """Run the command line and turn errors into exit codes."""
    from recompute.cli import streams
    from recompute.cli.render_error import exit_with

    as_json = _asks_for_json(sys.argv[1:])
    streams.prepare(as_json=as_json)
    try:
        code = cli.main(prog_name="recompute", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - the one place that maps every error to an exit code
        exit_with(error, as_json=as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Say whether the command line, which may be wrong, asks for JSON: ``--json`` or ``--format json``."""
    joined = " ".join(arguments)
    return "--json" in arguments or "--format=json" in arguments or "--format json" in joined
