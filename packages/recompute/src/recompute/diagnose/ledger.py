"""A ledger of matched runs, read for its failures. An edge module."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from recompute.diagnose.actions import keys_for, render
from recompute.diagnose.types import Diagnosis, Evidence, Stage, Verdict
from recompute.ledger import Line, bad_ledger, lines_of, manifest_of, standing

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row, as far as it must be understood here: what else it says may be anything."""

    id: Hashable
    repeat: int
    rank: int | None
    attempt: int
    final: bool
    outcome: object
    stage: object
    candidate: str
    digest: bytes
    """SHA-256 of the line: two rows are the same when their lines are."""

    @property
    def failed(self) -> bool:
        return self.outcome == "oom"


def diagnose_ledger(root: str) -> Diagnosis:
    """Say what the rows that stand in a ledger show: of each run and rank its last attempt.

    Raises:
        InputError: ``not-a-ledger``, ``bad-ledger``, ``cannot-read``, ``ledger-conflict``: as
            :mod:`recompute.ledger` says, or a row is no object.
    """
    manifest_of(Path(root))
    notes: list[str] = []
    rows = list(_rows(root, notes))
    stand = standing(rows)
    notes += _earlier(rows, stand)
    failed = [(line, row) for line, row in stand if row.failed]
    passed = sum(row.outcome == "pass" for _, row in stand)
    if not failed:
        return Diagnosis(
            verdict=Verdict.NOT_OOM,
            rules=("ledger-no-oom",),
            next_actions=(render("nothing", ()),),
            summary=f"no row ran out of memory; {passed} passed",
            notes=tuple(notes),
        )
    first = failed[0][1]
    stage = next((stage for stage in Stage if stage == first.stage), Stage.UNKNOWN)
    verdict = _BY_STAGE.get(stage, Verdict.CAPACITY)
    candidates = sorted({row.candidate for _, row in failed})
    return Diagnosis(
        verdict=verdict,
        stage=stage,
        rank=first.rank,
        evidence=tuple(_evidence(line) for line, _ in failed[:4]),
        next_actions=tuple(render(key, ("mlp",)) for key in keys_for("ledger-oom", verdict)),
        rules=("ledger-oom",),
        summary=f"{len(failed)} row(s) of {len(candidates)} candidate(s) ran out of memory: {', '.join(candidates)[:200]}; {passed} row(s) passed",
        notes=tuple(notes),
    )


def _earlier(
    rows: Sequence[tuple[Line, _Row]], stand: Sequence[tuple[Line, _Row]]
) -> Iterator[str]:
    """Name the rows of attempts that a later one replaced."""
    last = {(row.id, row.repeat, row.rank): row.attempt for _, row in stand}
    left = [row for _, row in rows if row.attempt < last[row.id, row.repeat, row.rank]]
    if not left:
        return
    failed = sorted({row.candidate for row in left if row.failed})
    of_them = f", some of them out of memory: {', '.join(failed)[:200]}" if failed else ""
    yield f"{len(left)} row(s) of earlier attempts do not count{of_them}"


def _rows(root: str, notes: list[str]) -> Iterator[tuple[Line, _Row]]:
    for line in lines_of(Path(root, "rows"), notes):
        if not isinstance(line.value, dict):
            raise bad_ledger(line.path, line.number, "not a row: no JSON object")
        row = _row_of(line, line.value)
        yield replace(line, data=line.data[:MOST_QUOTED], value=None), row


def _row_of(line: Line, said: Mapping[str, Any]) -> _Row:
    """Read a row; one that does not name its run is the only one of it."""
    run, repeat, rank, attempt = (said.get(name) for name in ("id", "repeat", "rank", "attempt"))
    return _Row(
        id=run if isinstance(run, str) else (str(line.path), line.number),
        repeat=repeat if isinstance(repeat, int) else 0,
        rank=rank if isinstance(rank, int) else None,
        attempt=attempt if isinstance(attempt, int) else 0,
        final=said.get("final") is not False,
        outcome=said.get("outcome"),
        stage=said.get("stage"),
        candidate=str(said.get("candidate")),
        digest=hashlib.sha256(line.data.strip()).digest(),
    )


def _evidence(line: Line) -> Evidence:
    text = line.data[:MOST_QUOTED].decode("utf-8", "replace").strip()
    return Evidence(file=str(line.path), line=line.number, text=text)
