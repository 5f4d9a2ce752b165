"""Standard streams as they are found: closed, full, broken, or in an encoding that lacks letters."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

from mdr.errors import WorldError


def prepare(*, as_json: bool) -> None:
    """Make the three streams writable and able to carry any text.

    A closed one becomes the null device, so that no file opened later gets its number and our words.
    JSON is UTF-8 whatever the locale says; other text keeps the locale's encoding, and what that lacks
    is written as an escape. A lone surrogate of an odd file name becomes its escape, valid in JSON.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor, open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = "utf-8" if as_json else None
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def output_closed() -> WorldError:
    """Describe a reader of our answer that went away; nobody is left to be told."""
    return WorldError("output-closed", "the reader of standard output went away")


def write_answer(text: str) -> bool:
    """Write to standard output and flush it; say whether it took everything."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        abandon_output()
        return False
    return True


def abandon_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush cannot fail."""
    with suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
