"""How fast the rules are: configurations a second in one process, and ``check`` as a whole process.

Prints one table. No arguments.
"""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recompute.config.choice import full, selective, with_choice
from recompute.config.revision import Revision
from recompute.rules.check import check, has_error, legal
from recompute.rules.examples import BASE

ROUNDS = 5
JOB = """\
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  seq_length: 8192
  recompute_granularity: full
  recompute_method: block
  recompute_num_layers: 5
"""


def jobs() -> list[tuple[object, Revision]]:
    """Return jobs as a planner and a repository gate meet them, legal and illegal ones mixed."""
    model = dataclasses.replace(BASE.model, num_moe_experts=8, moe_grouped_gemm=True)
    base = dataclasses.replace(BASE, model=model)
    choices = [
        *(full(method, count) for method in ("uniform", "block") for count in (1, 2, 3, 8)),
        *(
            selective(*labels)
            for size in range(4)
            for labels in itertools.combinations(
                ("core_attn", "layernorm", "mlp", "moe", "moe_act"), size
            )
        ),
    ]
    return [
        (with_choice(base, choice), Revision(name))
        for choice in choices
        for name in ("0.14", "0.16", "0.19", "main")
    ]


def rate(function: object, items: list[tuple[object, Revision]]) -> float:
    """Return calls a second of processor time, the best of some rounds."""
    best = 0.0
    for _ in range(ROUNDS):
        start = time.process_time()
        for job, revision in items:
            function(job, revision)  # type: ignore[operator]
        best = max(best, len(items) / (time.process_time() - start))
    return best


def process_seconds() -> float:
    """Return the wall time of ``recompute check`` on a small job, the best of some runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(JOB, encoding="utf-8")
        best = 60.0
        for _ in range(ROUNDS):
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "recompute", "check", str(path), "--mcore", "0.19"],
                check=False,
                capture_output=True,
            )
            best = min(best, time.perf_counter() - start)
        return best


def main() -> int:
    """Print the table; return 1 when a floor is missed."""
    items = jobs()
    choice = selective("mlp")
    rows = [
        ("has_error", rate(has_error, items), 2000),
        ("check without fixes", rate(lambda j, r: check(j, r, fixes=False), items), 2000),
        ("check with fixes", rate(check, items), 2000),
        ("legal(job, choice)", rate(lambda j, r: legal(j, choice, r), items), 2000),
    ]
    print(f"{len(items)} jobs, best of {ROUNDS} rounds")
    for name, value, floor in rows:
        print(f"{name:22} {value:10,.0f} a second   (floor {floor:,})")
    seconds = process_seconds()
    print(f"{'check, whole process':22} {seconds:10.3f} s          (limit 0.4 s)")
    return int(seconds > 0.4 or any(value < floor for _, value, floor in rows))


if __name__ == "__main__":
    sys.exit(main())
