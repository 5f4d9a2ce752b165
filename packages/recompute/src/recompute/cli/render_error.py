"""Turn any error into one clear message and the exit code of the contract."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

import click

from recompute.errors import RecomputeError

WORLD: Final = 3
"""Exit code of what the disk, the network or a launcher did."""


def exit_with(error: Exception, *, as_json: bool) -> NoReturn:
    """Print ``error`` and leave: 1 the answer is no, 2 usage or input, 3 the world failed.

    Args:
        error: What was raised. Our own bugs are raised again, with their traceback.
        as_json: Print the one JSON document of the contract on stdout instead of text on stderr.
    """
    match error:
        case RecomputeError():
            code, message, hint, data = error.code, error.message, error.hint, error.data
            status = error.exit_code
        case click.exceptions.Exit():
            sys.exit(error.exit_code)
        case click.Abort():
            code, message, hint, data, status = "aborted", "aborted", "", {}, 2
        case click.exceptions.NoArgsIsHelpError() if not as_json:
            from recompute.cli import streams

            streams.say(error.ctx.get_help() + "\n")
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
            code, message, data, status = "os-error", str(error), {}, WORLD
            hint = "look at the disk and at where the output goes, then run the command again"
        case _:
            raise error
    from recompute.cli import streams

    if not as_json:
        streams.say(f"recompute: {message} [{code}]\n" + (f"hint: {hint}\n" if hint else ""))
        if status == WORLD:
            streams.abandon()
        sys.exit(status)
    from recompute.report.document import dump

    document = {"schema": "recompute.error/1", "code": code, "message": message}
    if not streams.answer(dump({**document, "hint": hint, "data": data})):
        streams.say(f"recompute: {message} [{code}]; the answer could not be written\n")
        sys.exit(WORLD)
    sys.exit(status)


def _usage(error: click.ClickException) -> str:
    """Return how the command that was meant is called, or which commands there are."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return f"see {_called()} --help"
    path = context.command_path
    if isinstance(error, click.NoSuchOption) and (field := _field_of(error.option_name)):
        return f"fields of the job are overridden behind it: {field}=VALUE; see {path} --help"
    if isinstance(context.command, click.Group):
        names = ", ".join(context.command.list_commands(context))
        return f"commands are {names}; see {path} --help"
    usage = context.command.collect_usage_pieces(context)
    return " ".join((path, *usage, "- or see", path, "--help"))


def _field_of(option: str) -> str | None:
    """Return the field of a job that an option means, as Megatron-LM's ``--micro-batch-size`` does."""
    from recompute.config.known import field_named

    return field_named(option.lstrip("-").replace("-", "_"))


def _called() -> str:
    """Return the command that was called: click forgets it where an option lacks its value."""
    from recompute.cli.main import COMMANDS

    return " ".join(("recompute", *(word for word in sys.argv[1:2] if word in COMMANDS)))
