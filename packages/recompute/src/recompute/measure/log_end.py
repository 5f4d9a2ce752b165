"""What the end of a run's log says about its end. An edge module."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

TAIL_BYTES: Final = 4096
_ROOT_CAUSE: Final = "Root Cause (first observed failure)"
"""Begins torchrun's account of the rank that failed first: pytorch v2.11 torch/distributed/elastic/
multiprocessing/errors/__init__.py ``ChildFailedError.format_msg``."""
_FIELD: Final = re.compile(r"\b(rank|exitcode|traceback)\s*: (.+)")
_SAYS_NOTHING: Final = "To enable traceback see"
"""torchrun's own line in place of a traceback."""


def tail_of(log: Path) -> str:
    """Return the rank that failed first where torchrun names it, else the last line that says something."""
    text = end_of(log)
    _, found, account = text.rpartition(_ROOT_CAUSE)
    if found and (first := _first_failure(account)):
        return first
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line[:300] for line in lines if any(map(str.isalnum, line))), "")


def end_of(log: Path) -> str:
    """Return the last few thousand characters of a log; nothing where there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _first_failure(account: str) -> str | None:
    fields = {name: text.strip() for name, text in _FIELD.findall(account)}
    if "rank" not in fields:
        return None
    words = [f"rank {fields['rank'].split()[0]} failed first"]
    if "exitcode" in fields:
        words.append(f"exit code {fields['exitcode'].split()[0]}")
    if (why := fields.get("traceback", "")) and not why.startswith(_SAYS_NOTHING):
        words.append(why[:200])
    return ", ".join(words)
