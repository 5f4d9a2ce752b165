"""What a MemoryProbe costs a training step on a GPU, by part: time inside its own calls.

usage: PYTHONPATH=packages/recompute/src python benchmarks/probe_cost.py OUT.json [STUDY...]

The built-in trainer takes the steps of a study of benchmarks/studies under a probe whose parts are timed
besides, each without what it calls of the others. Timing a part costs about a microsecond, which is in the
total. Needs torch with CUDA, megatron-core and transformer-engine.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from recompute.measure.ledger import read_ledger, write_manifest
from recompute.megatron import trainer
from recompute.megatron.meters import CudaMeter
from recompute.megatron.probe import RUN, MemoryProbe

sys.path.insert(0, str(Path(__file__).resolve().parent / "studies"))
from cases import Case, answer, cases

STEPS, WARMUP = 44, 4
PARTS = {
    CudaMeter: ("take", "_raw", "stamp", "later", "seconds", "device_used", "counts"),
    MemoryProbe: ("enter", "step_begins", "step_ends", "_collect", "_write"),
}


class Clock:
    """Exclusive times of parts that call each other, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._inner = [0.0]

    def watch(self, owner: Any, name: str) -> None:
        """Time a method of a class."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                inner = self._inner.pop()
                self._inner[-1] += took
                if self.on:
                    self.seconds[name] += took - inner
                    self.calls[name] += 1

        setattr(owner, name, timed)


def study(torch: Any, case: Case, clock: Clock) -> dict[str, Any]:
    """Take the steps of one study; return milliseconds a steady step by part."""
    root = tempfile.mkdtemp()
    write_manifest(root, environment={})
    told = {"ledger": root, "run": "control-0", "candidate": "[]", "warmup_steps": WARMUP}
    told |= {"steps": STEPS, "seed": 0}
    os.environ[RUN] = json.dumps(told)
    clock.seconds.clear()
    clock.calls.clear()
    clock.on = False
    ends = MemoryProbe.step_ends

    def step_ends(self: MemoryProbe, *args: Any, **kwargs: Any) -> None:
        ends(self, *args, **kwargs)
        clock.on = WARMUP <= self._steps < STEPS

    MemoryProbe.step_ends = step_ends  # type: ignore[method-assign]
    with MemoryProbe(snapshots=False) as probe:
        trainer.train(torch, told, case.workload, case.place, probe)
    MemoryProbe.step_ends = ends  # type: ignore[method-assign]
    (row,) = read_ledger(root).rows
    steady = STEPS - WARMUP
    step = median(row.steady_seconds) * 1e3
    inside = (row.probe_steady_seconds or 0.0) / steady * 1e3
    return {
        "step_ms": round(step, 2),
        "inside_ms": round(inside, 3),
        "share": round(inside / step, 5),
        "parts_ms": {n: round(s / steady * 1e3, 4) for n, s in clock.seconds.items()},
        "calls": {n: round(c / steady, 2) for n, c in clock.calls.items()},
        "gpu": (row.environment or {}).get("gpu"),
    }


def main() -> None:
    """Read the arguments and run."""
    os.environ.setdefault(trainer.CONNECTIONS, "1")
    import torch

    clock = Clock()
    for owner, names in PARTS.items():
        for name in names:
            clock.watch(owner, name)
    found: dict[str, Any] = {}
    for case in cases(torch, ((name, ()) for name in sys.argv[2:] or ["dense-bias"])):
        found[case.name] = study(torch, case, clock)
        answer(sys.argv[1], found, case.name)
    os._exit(0)


if __name__ == "__main__":
    main()
