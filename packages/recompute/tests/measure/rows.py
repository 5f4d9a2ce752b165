"""Rows that the tests of this folder share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recompute.measure.ledger import RowWriter, write_manifest
from recompute.measure.row import Outcome, PhaseBytes, Row

GIB = 1 << 30
STEPS = (3.0, 1.00, 1.01, 0.99, 1.00)
"""One warm-up step and four steady ones."""


def row(candidate: str, *, peak: int = 10 * GIB, slow: float = 1.0, **fields: Any) -> Row:
    """Return a run of one rank that passed."""
    repeat = fields.get("repeat", 0)
    values: dict[str, Any] = {
        "id": f"{candidate}-{repeat}",
        "candidate": candidate,
        "control_id": "[]-0",
        "rank": 0,
        "outcome": Outcome.PASS,
        "static_bytes": 4 * GIB,
        "phases": (
            PhaseBytes(phase="forward", allocated_peak_bytes=peak, reserved_peak_bytes=peak + 5),
            PhaseBytes(phase="backward", allocated_peak_bytes=peak - 7, reserved_peak_bytes=peak),
        ),
        "step_seconds": tuple(s * slow for s in STEPS),
        "warmup_steps": 1,
        "optimizer_initialized": True,
    }
    return Row(**values | fields)


def ledger(root: Path, rows: Iterable[Row], **manifest: Any) -> str:
    """Write a ledger and return its path."""
    write_manifest(str(root), environment={"gpu": "NVIDIA H200"}, **manifest)
    writer = RowWriter(str(root), "rank-00000")
    for item in rows:
        writer.append(item)
    writer.close()
    return str(root)


def lines(root: str) -> list[dict[str, Any]]:
    """Return the documents of a ledger's first file."""
    path = Path(root, "rows", "rank-00000.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
