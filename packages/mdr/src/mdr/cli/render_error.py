"""Turn any error into one clear message and the exit code of the contract."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from mdr.cli.streams import abandon_output, write_answer
from mdr.errors import MdrError


def exit_with(error: Exception, *, as_json: bool) -> NoReturn:
    """Print ``error`` and leave: 1 the answer is no, 2 usage or input, 3 the world failed.

    Args:
        error: What was raised. Our own bugs are raised again, with their traceback.
        as_json: Print the one JSON document of the contract on stdout instead of text on stderr.
    """
    match error:
        case MdrError():
            code, message, hint, data = error.code, error.message, error.hint, error.data
            status = error.exit_code
        case click.exceptions.Exit():
            sys.exit(error.exit_code)
        case click.Abort():
            code, message, hint, data, status = "aborted", "aborted", "", {}, 2
        case click.exceptions.NoArgsIsHelpError() if not as_json:
            sys.stderr.write(error.ctx.get_help() + "\n")
            sys.exit(2)
        case click.ClickException():
            code, message, hint, data, status = (
                "usage",
                error.format_message(),
                _usage(error),
                {},
                2,
            )
        case OSError():
            code, message, hint, data, status = "os-error", str(error), "", {}, 3
        case _:
            raise error
    if code == "output-closed":
        abandon_output()
    elif as_json:
        import json

        document = {"schema": "mdr.error/1", "code": code, "message": message}
        text = json.dumps({**document, "hint": hint, "data": data}, ensure_ascii=False)
        if not write_answer(text + "\n"):
            sys.stderr.write(f"mdr: {message} [{code}]\n")
    else:
        sys.stderr.write(f"mdr: {message} [{code}]\n" + (f"hint: {hint}\n" if hint else ""))
        write_answer("")
    sys.exit(status)


def _usage(error: click.ClickException) -> str:
    """Return how the command that was misused is called, or which commands there are."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return f"see {_called()} --help"
    path = context.command_path
    if isinstance(context.command, click.Group):
        names = ", ".join(context.command.list_commands(context))
        return f"commands are {names}; see {path} --help"
    usage = context.command.collect_usage_pieces(context)
    return " ".join((path, *usage, "- or see", path, "--help"))


def _called() -> str:
    """Return the command that was called: click forgets it where an option lacks its value."""
    from mdr.cli.main import COMMANDS

    return " ".join(("mdr", *(word for word in sys.argv[1:2] if word in COMMANDS)))
