"""A ledger of matched runs, read for its failures. An edge module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from recompute.diagnose.actions import keys_for, render
from recompute.diagnose.types import Diagnosis, Evidence, Stage, Verdict
from recompute.ledger import bad_ledger, lines_of, manifest_of

MOST_QUOTED: Final = 400
"""Bytes of a row that are quoted as evidence."""
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
        InputError: ``not-a-ledger``, ``bad-ledger``: as :mod:`recompute.ledger` says, or a row is no object.
    """
    manifest_of(Path(root))
    notes: list[str] = []
    failed: list[tuple[Evidence, dict[str, Any]]] = []
    passed = 0
    for evidence, row in _rows(root, notes):
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
            notes=tuple(notes),
        )
    evidence, row = failed[0]
    stage = next((stage for stage in Stage if stage == row.get("stage")), Stage.UNKNOWN)
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
        notes=tuple(notes),
    )


def _rows(root: str, notes: list[str]) -> Iterator[tuple[Evidence, dict[str, Any]]]:
    for line in lines_of(Path(root, "rows"), notes):
        if not isinstance(line.value, dict):
            raise bad_ledger(line.path, line.number, "not a row: no JSON object")
        text = line.data[:MOST_QUOTED].decode("utf-8", "replace").strip()
        yield Evidence(file=str(line.path), line=line.number, text=text), line.value
