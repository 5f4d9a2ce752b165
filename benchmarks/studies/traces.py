"""Record what one step allocates and frees, with stacks, and which kernels it runs.

usage: PYTHONPATH=packages/recompute/src python benchmarks/studies/traces.py OUT.json.gz NAME::OVERRIDES::CANDIDATES...

OVERRIDES and CANDIDATES are lists with commas; OVERRIDES may be empty. One process; every case is built,
warmed up, recorded for one step and profiled for one more. Rows of OUT.json.gz:
``{"study", "candidate", "static", "events": [[action, address, bytes, stack]], "kernels": [[name, count,
microseconds]]}``, stacks as numbers into ``"stacks"``, innermost frame first.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
import traceback
from typing import Any, Final

import triton_configs
from cases import Case, cases, forget

from recompute.measure.candidate import choice_of_text, text_of
from recompute.megatron import trainer
from recompute.megatron.build import optimizer_of

FRAMES: Final = 24
WARMUP: Final = 3
ACTIONS: Final = ("alloc", "free_requested", "free_completed")


class Stacks:
    """Stacks by number."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []
        self._known: dict[tuple[str, ...], int] = {}

    def number(self, frames: list[dict[str, Any]]) -> int:
        """Return a stack's number."""
        key = tuple(_line(frame) for frame in frames[:FRAMES])
        if key not in self._known:
            self._known[key] = len(self.lines)
            self.lines.append(list(key))
        return self._known[key]


def _line(frame: dict[str, Any]) -> str:
    path = "/".join(str(frame["filename"]).split("/")[-3:])
    return f"{path}:{frame['line']} {frame['name']}"


def events_of(snapshot: dict[str, Any], stacks: Stacks) -> list[list[Any]]:
    """Return allocations and frees of the one device, in order."""
    return [
        [ACTIONS.index(e["action"]), e["addr"], e["size"], stacks.number(e.get("frames") or [])]
        for e in snapshot["device_traces"][0]
        if e["action"] in ACTIONS
    ]


def kernels_of(torch: Any, step: Any) -> list[list[Any]]:
    """Return name, count and microseconds of the kernels of one step, longest first."""
    cuda = torch.profiler.ProfilerActivity.CUDA
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[cuda]) as profiler:
        step()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = found.setdefault(event.name[:160], [0, 0.0])
            entry[0] += 1
            entry[1] += event.time_range.elapsed_us()
    return sorted(([n, c, round(t, 1)] for n, (c, t) in found.items()), key=lambda k: -k[2])


def record(torch: Any, case: Case, candidate: str, stacks: Stacks) -> dict[str, Any]:
    """Build one case, record a step of it and profile another."""
    workload, place = case.workload, case.place
    chunks = trainer._built(torch, workload, choice_of_text(candidate), place, 0)  # noqa: SLF001
    update = optimizer_of(torch, workload, chunks)

    def step(number: int) -> None:
        trainer._step(torch, workload, update, place, number)  # noqa: SLF001

    for number in range(WARMUP):
        step(number)
    memory = torch.cuda.memory
    torch.cuda.synchronize()
    static = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    memory._record_memory_history(max_entries=400000, stacks="python")  # noqa: SLF001
    step(WARMUP)
    torch.cuda.synchronize()
    snapshot = memory._snapshot()  # noqa: SLF001
    memory._record_memory_history(enabled=None)  # noqa: SLF001
    return {
        "static": static,
        "peak": torch.cuda.max_memory_allocated(),
        "events": events_of(snapshot, stacks),
        "kernels": kernels_of(torch, lambda: step(WARMUP + 1)),
    }


def main() -> None:
    """Read the arguments and run."""
    os.environ.setdefault(trainer.CONNECTIONS, "1")
    import torch

    triton_configs.take_first()
    triton_configs.ignore_wrong_gradients()
    stacks, rows = Stacks(), []
    asked = [item.split("::") for item in sys.argv[2:]]
    named = ((name, filter(None, overrides.split(","))) for name, overrides, _ in asked)
    for case, (_, overrides, candidates) in zip(cases(torch, named), asked, strict=True):
        for text in candidates.split(","):
            began = time.monotonic()
            row = {
                "study": case.name,
                "overrides": overrides,
                "candidate": text_of(choice_of_text(text)),
            }
            try:
                row |= record(torch, case, row["candidate"], stacks)
            except Exception:  # noqa: BLE001 - the row says that it failed, the rest goes on
                row["error"] = traceback.format_exc()[-1500:]
                print(row["error"], flush=True)
            rows.append(row)
            print(f"{case.name} {text}: {time.monotonic() - began:.1f} s", flush=True)
            with gzip.open(sys.argv[1], "wt", encoding="utf-8") as sink:
                json.dump({"stacks": stacks.lines, "rows": rows}, sink)
            forget(torch)
    os._exit(0)


if __name__ == "__main__":
    main()
