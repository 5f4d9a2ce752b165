"""Cursors as text: where a page ended, in words that only we read. Each list says what it writes in one."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from mdr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_cursor(words: Mapping[str, Any]) -> str:
    """Write a cursor: letters, digits, ``-`` and ``_``.

    Args:
        words: JSON types.
    """
    return base64.urlsafe_b64encode(json.dumps(words).encode()).decode("ascii").rstrip("=")


def read_cursor(text: str) -> Any:
    """Return what a cursor holds, which may be anything: whoever asks may have made it up.

    Raises:
        ValueError: It is not one.
    """
    padded = text + "=" * (-len(text) % 4)
    try:
        return json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def bad_cursor(giver: str, *, along: str = "") -> UsageError:
    """Describe a cursor that a list did not give.

    Args:
        giver: What gives cursors: ``list``, ``search``.
        along: What else to pass as before.
    """
    return UsageError(
        "bad-cursor",
        f"the cursor is not one that this {giver} gave",
        hint=f"start without a cursor, and pass next_cursor as it is{along}",
    )
