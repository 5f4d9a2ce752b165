"""The ``mdr`` command: one module per command, imported only when it runs."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from mdr import __version__
from mdr.cli.streams import output_closed, prepare

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "index": ("mdr.cli.index", "find artifacts in a repository, freeze and audit every version"),
    "search": ("mdr.cli.search", "find artifacts; without words, what the registry holds"),
    "show": ("mdr.cli.show", "an artifact, its versions and its audit"),
    "audit": ("mdr.cli.audit", "grade a file or a version by the deterministic audit"),
    "add": ("mdr.cli.add", "install an artifact and write it to mdr.lock"),
    "install": ("mdr.cli.install", "reproduce what mdr.lock holds"),
    "verify": ("mdr.cli.verify", "compare every installed file with mdr.lock"),
    "outdated": ("mdr.cli.outdated", "list what has a newer version"),
    "update": ("mdr.cli.update", "move labels to their newest version, after showing the diff"),
    "remove": ("mdr.cli.remove", "remove an artifact, keeping files that you changed"),
    "diff": ("mdr.cli.diff", "compare two versions, lines and meaning"),
    "import": ("mdr.cli.import_", "take over the lock of another tool, matched by content"),
    "list": ("mdr.cli.list_", "what mdr.lock holds"),
    "fsck": ("mdr.cli.fsck", "check the data folder, and repair it without loss"),
    "serve": ("mdr.cli.serve", "serve the registry: pages, API, tools for agents"),
    "token": ("mdr.cli.token", "tokens that may change this registry"),
    "yank": ("mdr.cli.yank", "take a version back, or its bytes for everyone"),
    "worker": ("mdr.cli.worker", "crawl the sources of a registry again and again"),
    "backup": ("mdr.cli.backup", "back the registry up, while it is read and written"),
    "restore": ("mdr.cli.restore", "put a backup into an empty registry, on any database"),
    "mcp": ("mdr.cli.mcp", "offer a registry to agents as read-only tools"),
    "lock": ("mdr.cli.lock", "merge mdr.lock after a git conflict"),
}
"""Command name -> (module that defines ``command``, one line for --help)."""

OTHER_NAMES: Final[Mapping[str, str]] = {
    "ls": "list",
    "rm": "remove",
    "uninstall": "remove",
    "upgrade": "update",
    "find": "search",
    "info": "show",
    "scan": "audit",
    "check": "verify",
    "init": "add",
}
"""What other tools call a command -> ours; named in a hint, never run."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command runs."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command and flush its answer here, where a failure can still be told."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:  # click would exit 1, which means that the answer is no
            raise output_closed() from error
        return answer

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
@click.version_option(__version__, prog_name="mdr")
def cli() -> None:
    """Index, audit, pin and verify agent-read markdown."""


def run() -> None:
    """Run the command line and turn errors into exit codes."""
    from mdr.cli.render_error import exit_with

    as_json = "--json" in sys.argv
    prepare(as_json=as_json)
    try:
        code = cli.main(prog_name="mdr", standalone_mode=False)
    except KeyboardInterrupt:  # between click's own handlers
        exit_with(click.Abort(), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the one place that maps every error to an exit code
        exit_with(error, as_json=as_json)
    sys.exit(code if isinstance(code, int) else 0)
