"""A ledger of matched runs, read for its failures. An edge module.

The layout is the contract's: ``manifest.json`` and ``rows/*.jsonl``, one row per rank and repeat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from recompute.diagnose.actions import keys_for, render
from recompute.diagnose.types import Diagnosis, Evidence, Stage, Verdict
from recompute.errors import InputError

MAX_LINE: Final = 1 << 20
MAX_ROWS: Final = 200_000
_BY_STAGE: Final = {
    Stage.OPTIMIZER_INIT: Verdict.OPTIMIZER_STATE,
    Stage.OPTIMIZER_STEP: Verdict.OPTIMIZER_STATE,
    Stage.GRAD_SYNC: Verdict.GRADIENTS,
    Stage.MODEL_BUILD: Verdict.PARAMETERS,
    Stage.LOSS: Verdict.LOGITS,
    Stage.GRAPH_CAPTURE: Verdict.GRAPH_POOLS,
    Stage.FORWARD: Verdict.ACTIVATION,
    Stage.BACKWARD: Verdict.ACTIVATION,
}


def diagnose_ledger(root: str) -> Diagnosis:
    """Say what the rows of a ledger show.

    Raises:
        InputError: ``bad-ledger``: a row or the manifest is not JSON.
    """
    _refuse_bad_manifest(Path(root, "manifest.json"))
    failed: list[tuple[Evidence, dict[str, Any]]] = []
    passed = 0
    for evidence, row in _rows(root):
        if row.get("outcome") == "oom":
            failed.append((evidence, row))
        elif row.get("outcome") == "pass":
            passed += 1
    if not failed:
        return Diagnosis(
            verdict=Verdict.NOT_OOM,
            rules=("ledger-no-oom",),
            next_actions=(render("nothing", ()),),
            summary=f"no row ran out of memory; {passed} passed",
        )
    evidence, row = failed[0]
    stage = Stage(row["stage"]) if row.get("stage") in set(Stage) else Stage.UNKNOWN
    verdict = _BY_STAGE.get(stage, Verdict.CAPACITY)
    candidates = sorted({str(other.get("candidate")) for _, other in failed})
    rank = row.get("rank")
    return Diagnosis(
        verdict=verdict,
        stage=stage,
        rank=rank if isinstance(rank, int) else None,
        evidence=tuple(item for item, _ in failed[:4]),
        next_actions=tuple(render(key, ("mlp",)) for key in keys_for("ledger-oom", verdict)),
        rules=("ledger-oom",),
        summary=f"{len(failed)} row(s) of {len(candidates)} candidate(s) ran out of memory: {', '.join(candidates)[:200]}; {passed} row(s) passed",
    )


def _rows(root: str) -> list[tuple[Evidence, dict[str, Any]]]:
    rows: list[tuple[Evidence, dict[str, Any]]] = []
    for path in sorted(Path(root, "rows").glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), ""), 1):
                if line.strip() and len(rows) < MAX_ROWS:
                    text = line.strip()
                    rows.append(
                        (
                            Evidence(file=str(path), line=number, text=text[:400]),
                            _row(path, number, text),
                        )
                    )
    return rows


def _row(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(
            "bad-ledger",
            f"{path}:{number}: not a row of a ledger",
            hint="rows are written by recompute measure",
            data={"path": str(path), "line": number},
        )
    return value


def _refuse_bad_manifest(path: Path) -> None:
    try:
        with path.open("rb") as stream:
            is_object = isinstance(json.loads(stream.read(MAX_LINE)), dict)
    except (OSError, ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InputError(
            "bad-ledger",
            f"{path}: not the manifest of a ledger",
            hint="name the folder that recompute measure --out wrote",
            data={"path": str(path)},
        )
