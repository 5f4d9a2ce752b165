"""Measure settings that no study had met, all in one process: bytes first, step times beside them.

usage: PYTHONPATH=packages/recompute/src python benchmarks/studies/one_process.py OUT NAME=CANDIDATES...

``recompute measure`` gives every run a process of its own, which costs a minute of imports and compilation
in sum; here the built-in trainer builds one model after the other in one process. Ledgers go to OUT/NAME and
say so. Needs torch with CUDA, megatron-core, transformer-engine, and what the job's layers need.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import triton_configs
from cases import Case, cases, forget

from recompute.config.job_writers import job_yaml
from recompute.measure.candidate import choice_of_text, text_of
from recompute.measure.ledger import note_environment, write_manifest
from recompute.measure.workload import workload_of
from recompute.megatron import trainer
from recompute.megatron.environment import environment
from recompute.megatron.probe import RUN, MemoryProbe

NOTE = "one process for all rows (benchmarks/studies/one_process.py), not one for each"
UNTUNED = "Triton kernels run with their first configuration (triton_configs.py): step times are not tuned"
STEPS, WARMUP = 6, 2


def begin(torch: Any, out: Path, case: Case) -> None:
    """Begin a ledger."""
    job = case.job
    tuned = not (job.model.experimental_attention_variant or job.model.hybrid_override_pattern)
    notes = [NOTE] if tuned else [NOTE, UNTUNED]
    write_manifest(str(out), environment={}, job_yaml=job_yaml(job, comments=False), notes=notes)
    note_environment(str(out), environment(torch))
    (out / "workload.json").write_text(json.dumps(workload_of(job)), encoding="utf-8")


def forget_offloading() -> None:
    """Let the next model teach Megatron's manager of offloaded groups, one for the whole process, its own."""
    from megatron.core.pipeline_parallel import fine_grained_activation_offload as offload

    offload.PipelineOffloadManager.OFFLOAD_MGR = None


def run(torch: Any, out: Path, case: Case, candidate: str) -> None:
    """Measure one candidate under a probe."""
    name = "control" if candidate == "[]" else candidate
    told = {
        "ledger": str(out),
        "run": f"{name}-0",
        "candidate": candidate,
        "control_id": "control-0",
        "repeat": 0,
        "attempt": 0,
        "warmup_steps": WARMUP,
        "steps": STEPS,
        "seed": 0,
    }
    os.environ[RUN] = json.dumps(told)
    began = time.monotonic()
    with MemoryProbe(snapshots=False) as probe:
        trainer.train(torch, told, case.workload, case.place, probe)
    print(f"{out.name} {candidate}: {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """Read the arguments and run."""
    os.environ.setdefault(trainer.CONNECTIONS, "1")
    import torch

    triton_configs.take_first()
    triton_configs.ignore_wrong_gradients()
    root = Path(sys.argv[1])
    asked = [item.partition("=") for item in sys.argv[2:]]
    named = ((name, ("optimizer=null", "ddp=null")) for name, _, _ in asked)
    for case, (_, _, candidates) in zip(cases(torch, named), asked, strict=True):
        begin(torch, root / case.name, case)
        for text in ("[]", *candidates.split(",")):
            forget_offloading()
            candidate = text_of(choice_of_text(text))
            try:
                run(torch, root / case.name, case, candidate)
            except Exception:  # noqa: BLE001 - the row says that it failed, the study goes on
                print(case.name, candidate, traceback.format_exc()[-1500:], flush=True)
            forget(torch)
    os._exit(0)  # a process group with nothing to say need not be taken down


if __name__ == "__main__":
    main()
