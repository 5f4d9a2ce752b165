"""Whole-process times and memory of the commands, cold: start of the interpreter to exit.

Memory is that of the largest process; CPU is that of all.

::

    python benchmarks/speed.py [--runs N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recompute.report.text import table
from recompute.units import MIB

EXAMPLES: Final = Path(__file__).parent.parent / "examples"
JOB_405B: Final = str(EXAMPLES / "llama3-405b.yaml")
JOB_V3: Final = str(EXAMPLES / "deepseek-v3.yaml")
JOB_8B: Final = str(EXAMPLES / "llama3-8b.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command and what it is allowed."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    mebibytes: int


CASES: Final = (
    Case(name="--help", arguments=("--help",), seconds=0.4, mebibytes=100),
    Case(name="check, 405B", arguments=("check", JOB_405B), seconds=0.4, mebibytes=100),
    Case(name="explain, 405B", arguments=("explain", JOB_405B), seconds=2.0, mebibytes=300),
    Case(name="plan, 8B", arguments=("plan", JOB_8B, "--json"), seconds=2.0, mebibytes=300),
    Case(
        name="plan, 405B PP 16",
        arguments=("plan", JOB_405B, "--json"),
        seconds=2.0,
        mebibytes=300,
    ),
    Case(
        name="plan --per-layer, 405B PP 16",
        arguments=("plan", JOB_405B, "--per-layer", "--json"),
        seconds=2.0,
        mebibytes=300,
    ),
    Case(
        name="plan, 405B PP 16 of VPP 8",
        arguments=(
            "plan",
            JOB_405B,
            "model.virtual_pipeline_model_parallel_size=8",
            "--json",
        ),
        seconds=1.0,
        mebibytes=500,
    ),
    Case(
        name="plan --joint, DeepSeek-V3 on 1,024 GPUs",
        arguments=("plan", JOB_V3, "hardware.num_gpus=1024", "--joint", "--json"),
        seconds=60.0,
        mebibytes=500,
    ),
)


def measure(case: Case) -> tuple[float, float, float]:
    """Run one command and return seconds, seconds of CPU, and MiB at its highest.

    Raises:
        SystemExit: The command failed.
    """
    command = [sys.executable, "-m", "recompute", *case.arguments]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        errors = process.stderr.read().decode() if process.stderr else ""
    if process.returncode not in {0, 1} or "Traceback" in errors:
        raise SystemExit(f"{case.name}: exit {process.returncode}\n{errors}")
    unit = 1024 if sys.platform != "darwin" else 1
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / MIB


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the best of some runs of each command; 1 when one takes more than it may."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args(arguments).runs
    rows, slow = [], 0
    for case in CASES:
        results = [measure(case) for _ in range(max(runs, 1))]
        seconds, busy = min(r[0] for r in results), min(r[1] for r in results)
        memory = max(r[2] for r in results)
        within = seconds <= case.seconds and memory <= case.mebibytes
        slow += not within
        allowed = f"{case.seconds:.1f} s, {case.mebibytes} MiB"
        rows.append(
            (
                case.name,
                f"{seconds:.2f}",
                f"{busy:.2f}",
                f"{memory:.0f}",
                allowed,
                "yes" if within else "NO",
            )
        )
    print(table(("command", "seconds", "of CPU", "MiB", "allowed|", "within|"), rows))
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
