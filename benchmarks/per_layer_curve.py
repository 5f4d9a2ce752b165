"""What plans per layer win over the best stock setting, measured on one H200, over budgets.

::

    python benchmarks/per_layer_curve.py

At every half GiB between the lowest and the highest measured peak: the fastest measured stock setting
that fits, the fastest measured plan per layer that fits, and what ``recompute plan --per-layer`` predicts
for the same budget. Overheads are over the control of each row's own session. Nothing is fitted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

import recompute
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome
from recompute.report.text import gib, percent, table
from recompute.search.what_if import Variant, what_if
from recompute.units import GIB

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = ROOT / "benchmarks" / "data" / "h200.yaml"
LEDGER: Final = ROOT / "examples" / "ledger-per-layer"
JOB: Final = ROOT / "examples" / "llama3-8b-h200.yaml"
NOISE: Final = 0.012
"""Of three equal control runs, as a fraction of the step (docs/explanation/per-layer-plans.md)."""
STEP: Final = GIB // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured setting."""

    name: str
    per_layer: bool
    peak: int
    overhead: float


def recorded() -> Iterator[Run]:
    """Yield the rows of the dense study that are bound by the GPU."""
    rows = [
        row for row in yaml.safe_load(ROWS.read_text("utf-8"))["rows"] if "dense" in row["group"]
    ]
    steps = {row["id"]: row["measured"]["step"] for row in rows}
    for row in rows:
        seen: Mapping[str, Any] = row["measured"]
        control = steps[row["control"] or row["id"]]
        yield Run(
            name=str(row["id"]).removeprefix("h200-dense-te-"),
            per_layer=bool(row["choice"].get("layers")),
            peak=seen["static"] + seen["peak_over_static"],
            overhead=seen["step"] / control - 1.0,
        )


def applied() -> Iterator[Run]:
    """Yield the runs of plans that ``recompute.megatron.apply`` put on the model."""
    passed = [
        r for r in read_ledger(str(LEDGER)).rows if r.outcome is Outcome.PASS and r.step_seconds
    ]
    control = median(median(row.step_seconds) for row in passed if row.candidate == "[]")
    for row in passed:
        peak = row.peak
        if peak is None or peak.allocated_peak_bytes is None:
            continue
        yield Run(
            name=row.candidate,
            per_layer=row.candidate.startswith("per-layer"),
            peak=peak.allocated_peak_bytes,
            overhead=median(row.step_seconds) / control - 1.0,
        )


def best(runs: Sequence[Run], budget: int, *, per_layer: bool) -> Run | None:
    """Return the fastest run that fits; plans per layer include the stock settings."""
    fitting = [run for run in runs if run.peak <= budget and (per_layer or not run.per_layer)]
    return min(fitting, key=lambda run: (run.overhead, run.peak), default=None)


def main() -> int:
    """Print the curve; 1 when plans per layer win at fewer than half of the budgets."""
    runs = [*recorded(), *applied()]
    lowest, highest = min(run.peak for run in runs), max(run.peak for run in runs)
    budgets = [half * STEP for half in range(lowest // STEP + 1, highest // STEP + 1)]
    job = recompute.load(str(JOB))
    answers = what_if([Variant(changes=(), job=job)], budgets, [None], per_layer=True)
    lines, gains = [], []
    for budget, answer in zip(budgets, answers, strict=True):
        stock, mixed = (best(runs, budget, per_layer=wanted) for wanted in (False, True))
        if stock is None or mixed is None or stock.overhead <= 0.0:
            continue
        gains.append(stock.overhead - mixed.overhead)
        planned = "-" if answer.gain is None else f"{answer.gain:.1%}"
        cells = (stock.name, percent(stock.overhead), mixed.name, percent(mixed.overhead))
        lines.append((gib(budget), *cells, f"{gains[-1]:.1%}", planned))
    header = ("GiB", "stock|", "step", "per layer|", "step", "measured gain", "predicted gain")
    print(table(header, lines))
    clear = sum(gain > NOISE for gain in gains)
    print(
        f"\nper layer is faster at {sum(gain > 0 for gain in gains)} of {len(gains)} budgets, by more "
        f"than the noise of {NOISE:.1%} at {clear}, by up to {max(gains):.1%}"
    )
    return 0 if clear >= len(gains) / 2 else 1


if __name__ == "__main__":
    sys.exit(main())
