"""The JSON documents: the fields that every command shares, and how a document is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from recompute.config.schema import JobConfig


def envelope(command: str, job: JobConfig) -> dict[str, Any]:
    """Return what every document starts with; a command adds its own fields beside them.

    Args:
        command: ``check``, ``explain``, ...: names the schema ``recompute.COMMAND/1``.
        job: The job that was asked about, with its changes and assumptions.
    """
    return {
        "schema": f"recompute.{command}/1",
        "job": {
            "path": job.identity.path,
            "sha256": job.identity.sha256,
            "format": job.identity.format,
        },
        "changes": [
            {
                "field": change.field,
                "before": json_value(change.before),
                "after": json_value(change.after),
                "why": change.why,
                "source": change.source,
            }
            for change in job.changes
        ],
        "assumptions": [{"id": item.id, "text": item.text} for item in job.assumptions],
    }


def dump(document: Mapping[str, Any]) -> str:
    """Write a document as one line of JSON; never ``NaN`` or ``Infinity``, which are not JSON.

    Bytes of a file name that are no UTF-8 are escaped: the line can always be written as UTF-8.
    """
    value = json_value(document)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        return json.dumps(value, allow_nan=False)
    return text


def json_value(value: Any) -> Any:
    """Return a value of JSON types: tuples become lists, numbers that JSON lacks become text."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
