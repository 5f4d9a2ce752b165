"""Write the rows of an H200 study (benchmarks/gpu_study.py) as a ledger that ``recompute compare`` reads.

usage: study_ledger.py STUDY.json MODEL JOB.yaml OUT

The study measured bytes over the allocation at the step's start; a ledger's peaks include it. Its three
warm-up steps, after which optimizer states are there, were not recorded, and its step times are sorted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
from recompute.measure.candidate import text_of
from recompute.measure.ledger import RowWriter, write_manifest
from recompute.measure.row import Outcome, PhaseBytes, Row

CONTROL = "control"


def choice_of(case: dict[str, Any]) -> RecomputeChoice:
    """Return the choice of a case; ``mlp_layers`` is a per-layer plan."""
    given = case["recompute"]
    if given["recompute_granularity"] == "full":
        return full(given["recompute_method"], given["recompute_num_layers"])
    if case.get("mlp_layers") is not None:
        modules = tuple(given["recompute_modules"])
        return RecomputeChoice(
            per_layer=(LayerSpan(first=0, last=case["mlp_layers"] - 1, modules=modules),)
        )
    return selective(*given["recompute_modules"])


def rows_of(study: dict[str, Any], model: str) -> list[Row]:
    """Return the rows of one model, the control's repeats numbered."""
    seen: dict[str, int] = {}
    rows = []
    for case in study["rows"]:
        if case["model"] != model:
            continue
        name = text_of(choice_of(case))
        repeat = seen[name] = seen.get(name, -1) + 1
        measured = case["measured"]
        phases = tuple(
            PhaseBytes(
                phase=phase,
                allocated_peak_bytes=measured["static"] + measured[f"{phase}_peak"],
                reserved_peak_bytes=measured["reserved"],
            )
            for phase in ("forward", "backward")
        )
        run = CONTROL if name == "[]" else name
        rows.append(
            Row(
                id=f"{run}-{repeat}",
                candidate=name,
                control_id=f"{CONTROL}-0",
                repeat=repeat,
                rank=0,
                outcome=Outcome.PASS,
                static_bytes=measured["static"],
                phases=phases,
                step_seconds=tuple(ms / 1000 for ms in measured["step_ms"]),
                optimizer_initialized=True,
            )
        )
    return rows


def main() -> None:
    """Read the arguments and write."""
    study_path, model, job_path, out = sys.argv[1:]
    study = json.loads(Path(study_path).read_text("utf-8"))
    notes = [
        "written by benchmarks/study_ledger.py",
        "one process for all rows: what is allocated at a step's start grew by 0.05 GiB over them",
        *study["notes"],
    ]
    write_manifest(
        out,
        environment=study["environment"],
        job_yaml=Path(job_path).read_text("utf-8"),
        notes=notes,
    )
    writer = RowWriter(out, "rank-00000")
    for row in rows_of(study, model):
        writer.append(row)
    writer.close()


if __name__ == "__main__":
    main()
