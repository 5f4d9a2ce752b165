"""``make demo``: the registry chain, plans of real jobs, one answer in full, what to do next."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from recompute.search.types import Plan

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLES: Final = ROOT / "examples"
REGISTRY_DEMO: Final = ROOT / "tools" / "demo_registry.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One job file at one parallel layout."""

    title: str
    file: str
    overrides: tuple[str, ...] = ()


SHOWN: Final = Layout(
    title="Llama 3 70B, 64 GPUs, TP 4 PP 4 VPP 5 CP 1",
    file="llama3-70b.yaml",
    overrides=("model.context_parallel_size=1",),
)
"""The layout whose answer is printed in full."""

LAYOUTS: Final = (
    Layout(title="Llama 3 8B, 8 GPUs, CP 2 (the recipe)", file="llama3-8b.yaml"),
    Layout(
        title="Llama 3 8B, 8 GPUs, CP 1, micro-batch 2",
        file="llama3-8b.yaml",
        overrides=("model.context_parallel_size=1", "train.micro_batch_size=2"),
    ),
    Layout(
        title="Llama 3 8B, 8 GPUs, TP 2 with sequence parallelism, micro-batch 4",
        file="llama3-8b.yaml",
        overrides=(
            "model.context_parallel_size=1",
            "model.tensor_model_parallel_size=2",
            "model.sequence_parallel=true",
            "train.micro_batch_size=4",
        ),
    ),
    Layout(title="Llama 3 70B, 64 GPUs, TP 4 PP 4 VPP 5 CP 2 (the recipe)", file="llama3-70b.yaml"),
    SHOWN,
    Layout(
        title="Llama 3 70B, 64 GPUs, TP 8 PP 2 CP 1, no virtual stages",
        file="llama3-70b.yaml",
        overrides=(
            "model.context_parallel_size=1",
            "model.tensor_model_parallel_size=8",
            "model.pipeline_model_parallel_size=2",
            "model.virtual_pipeline_model_parallel_size=null",
        ),
    ),
    Layout(title="Llama 3.1 405B, 1024 GPUs, TP 8 PP 16", file="llama3-405b.yaml"),
    Layout(title="DeepSeek-V3, its example layout", file="deepseek-v3.yaml"),
)
"""The rows of the table: Llama 3 8B and 70B first."""

NEXT_STEPS: Final = """\
what to do next
  .venv/bin/recompute plan YOUR_JOB.yaml --gpu h100-80gb        your own job: YAML, launch script, config.json
  .venv/bin/recompute explain YOUR_JOB.yaml --html page.html    where the peak is, as a picture
  .venv/bin/recompute check YOUR_JOB.yaml                       is it legal on your revision
  .venv/bin/recompute diagnose YOUR.log                         why it went out of memory
  .venv/bin/mdr index github:NVIDIA/skills                      a registry of your own; then search, show, add
  README.md, docs/tutorial/first-plan.md                        the same, slower
"""


def main() -> int:
    """Run the demo; the exit code is that of the registry's part when it fails."""
    print("1. mdr: this repository's skill, from git history to verified bytes\n", flush=True)
    code = subprocess.run([sys.executable, str(REGISTRY_DEMO)], check=False).returncode
    if code:
        return code
    print("\n2. recompute: the cheapest activation recompute that fits, on h100-80gb\n", flush=True)
    start = time.perf_counter()
    print(_table())
    seconds = time.perf_counter() - start
    print(f"\n{len(LAYOUTS)} plans in {seconds:.1f} s on this machine, no GPU used")
    print("\n3. one of these answers in full\n")
    _full(SHOWN)
    print(NEXT_STEPS, end="")
    return 0


def _table() -> str:
    from recompute.report.text import gib, percent, table
    from recompute.search.types import Status

    rows = []
    for layout in LAYOUTS:
        answer = _plan(layout)
        chosen = answer.chosen or answer.closest
        assert chosen is not None
        says = {
            Status.ALREADY_FITS: "fits without recompute",
            Status.PLANNED: chosen.choice.label(),
            Status.INFEASIBLE: f"nothing fits; closest {chosen.choice.label()}",
        }[answer.status]
        rows.append(
            (
                layout.title,
                gib(answer.control.peak_bytes),
                says,
                gib(chosen.peak_bytes),
                percent(chosen.step_time_overhead),
            )
        )
    return table(("job", "peak [] GiB", "answer|", "peak GiB", "step time"), rows)


def _plan(layout: Layout) -> Plan:
    import recompute

    job = recompute.load(str(EXAMPLES / layout.file), *layout.overrides)
    return recompute.plan(job)


def _full(layout: Layout) -> None:
    from recompute.report.plan_text import plan_text

    command = " ".join(("recompute plan", f"examples/{layout.file}", *layout.overrides))
    print(f"$ .venv/bin/{command}\n")
    print(plan_text(_plan(layout)))
    print()


if __name__ == "__main__":
    raise SystemExit(main())
