"""The JSON document of ``diagnose``."""

from __future__ import annotations

from typing import Any

from recompute.diagnose.inputs import Format
from recompute.diagnose.run import Answer
from recompute.report.document import envelope


def diagnose_document(answer: Answer) -> dict[str, Any]:
    """Return ``recompute.diagnose/1``.

    Args:
        answer: What was found. Without a job the ``job`` object names the first input. ``runs`` is
            empty where all input is of one run.
    """
    if answer.job is not None:
        head = envelope("diagnose", answer.job)
    else:
        head = {
            "schema": "recompute.diagnose/1",
            "job": {
                "path": answer.sources[0].path if answer.sources else None,
                "sha256": None,
                "format": _form(answer),
            },
            "changes": [],
            "assumptions": [],
        }
    body = answer.diagnosis.to_document()
    body["snapshots"] = [shown.to_document() for shown in answer.snapshots]
    body["comparison"] = answer.comparison.to_document() if answer.comparison else None
    body["runs"] = [
        {"files": [source.path for source in run.sources], **run.diagnosis.to_document()}
        for run in answer.runs
    ]
    return {**head, **body}


def _form(answer: Answer) -> str | None:
    if not answer.sources:
        return None
    match answer.sources[0].format:
        case Format.PICKLE | Format.JSON_SNAPSHOT:
            return "snapshot"
        case Format.LEDGER:
            return "ledger"
        case Format.BINARY:
            return "binary"
        case _:
            return "log"
