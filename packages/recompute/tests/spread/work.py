"""Functions that workers run: importable where the tests are, and plain."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from recompute.errors import UnsupportedError


def square(number: int) -> tuple[int, int]:
    """Return the square, and who worked it out."""
    return number * number, os.getpid()


def refuse(number: int) -> int:
    """Refuse one number with an error of our own."""
    if number == 3:
        raise UnsupportedError("too-odd", "3 is too odd", hint="take 4", data={"number": number})
    return number


def die_once(request: tuple[int, int, str]) -> int:
    """End the process that works on 3, the first time that anybody but the caller does."""
    number, caller, mark = request
    if number == 3 and os.getpid() != caller and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_elsewhere(request: tuple[int, int]) -> int:
    """End any process but the caller."""
    number, caller = request
    if os.getpid() != caller:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
