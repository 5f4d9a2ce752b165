"""Standard output and error as they really are: closed, full, cut off, or of another encoding."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Final

_CLEARED_LINE: Final = "\r\x1b[K"
"""To the start of the line, and clear it: the one thing that we tell a terminal to do."""


def prepare(*, as_json: bool) -> None:
    """Make both streams take any text; JSON is UTF-8 whatever the locale says.

    Args:
        as_json: The answer on standard output is a JSON document.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = "utf-8" if as_json else sys.stdout.encoding
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def say(text: str, *, over: bool = False) -> None:
    """Write to standard error; where it is closed nobody listens, which is no fault.

    Args:
        text: What to write, line ends included. It may quote anything: see :func:`visible`.
        over: Write over what stands on the terminal's last line; only where there is a terminal.
    """
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write((_CLEARED_LINE if over else "") + visible(text))
            sys.stderr.flush()


def on_terminal() -> bool:
    """Say whether standard error is a terminal."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False


def answer(text: str) -> bool:
    """Write one line to standard output and say whether it arrived."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
    except (OSError, ValueError):
        abandon()
        return False
    return True


def abandon() -> None:
    """Give up standard output, so that Python does not complain about it once more at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def visible(text: str) -> str:
    """Escape what a terminal would act on or hide: a message quotes what a file holds."""
    return "".join(
        sign
        if sign.isprintable() or sign == "\n"
        else sign.encode("unicode_escape").decode("ascii")
        for sign in text
    )
