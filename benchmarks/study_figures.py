"""The studies in ``benchmarks/studies`` as figures: measured and predicted, row by row, and what a budget buys.

Every study is a ledger that ``recompute measure`` wrote on one H200, or one_process.py where the page says so.
A row counts as bound by the GPU when kernels ran for 95% of its step or more.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recompute.config.choice import RecomputeChoice
from recompute.config.gpus import find_gpu
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.config.schema import JobConfig
from recompute.measure.candidate import choice_of_text, text_of
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome, Row
from recompute.search.cost import CostModel
from recompute.search.plan import plan
from recompute.timeline.predict import Predictor

STUDIES: Final = Path(__file__).resolve().parent / "studies"
BOUND: Final = 0.95
"""Share of the step in which kernels ran, from which the GPU bounds it."""
FEWEST: Final = 4
"""Rows bound by the GPU that a study needs for the table of budgets."""
RAN: Final[Mapping[str, tuple[str, ...]]] = {
    "moe-offload": ("model.fine_grained_activation_offloading=false", "model.offload_modules=[]"),
}
"""What ran otherwise than a ledger's job says. Megatron's manager of offloaded groups is one for the whole
process and learns them in the first step (PipelineOffloadManager.init_model_chunk_offload_handler): in this
study it still held those of the one before, found none of its own among them, and sent nothing away."""
OUTSIDE: Final = ("initialization", "model_build")
MAIN: Final[Mapping[str, str]] = {
    "dense-gqa": "dense, grouped-query attention",
    "gqa-moe": "grouped-query attention, 32 experts",
    "mla-moe": "latent attention, 16 experts and a shared one",
    "dense-bias": "dense, biases and dropout",
    "dense-fp8": "dense, FP8 (tensorwise)",
}
"""One process a run, through ``recompute measure``."""
FEATURES: Final[Mapping[str, str]] = {
    "dense-window": "sliding window of 1,024",
    "dense-mtp": "multi-token prediction",
    "moe-capacity": "capacity factor 1, experts padded to it",
    "dense-fp8-delayed": "FP8, delayed scaling",
    "dense-fp8-blockwise": "FP8, block scaling",
    "dense-offload": "attention offloaded to host memory",
    "moe-offload": "two expert layers, nothing offloaded (see below)",
}
"""All rows in one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One candidate of a study: medians over its repeats. Bytes, seconds, fractions."""

    study: str
    candidate: str
    choice: RecomputeChoice
    peak: int
    static: int
    after: int | None
    step: float
    busy: float
    overhead: float
    predicted_peak: int
    predicted_activation: int
    predicted_after: int
    predicted_overhead: float

    @property
    def stock(self) -> bool:
        """Whether stock Megatron can be told this choice."""
        return self.choice.per_layer is None

    @property
    def peak_error(self) -> float:
        """Predicted over measured peak, less one."""
        return self.predicted_peak / self.peak - 1

    @property
    def activation_error(self) -> float:
        """The same of the part over static bytes."""
        return self.predicted_activation / (self.peak - self.static) - 1

    @property
    def after_error(self) -> float | None:
        """The same of what is held when forward has ended."""
        return None if not self.after else self.predicted_after / self.after - 1

    @property
    def overhead_error(self) -> float:
        """Predicted less measured overhead."""
        return self.predicted_overhead - self.overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One ledger, with what the product predicts for its job."""

    name: str
    rows: tuple[Figures, ...]
    noise: float
    """How far the steps of equal control runs lie apart, as a fraction; 0 where there is one run."""
    probe: float | None
    """Seconds of a steady step that were spent inside the probe; None where it waited for the device."""
    unmeasured: tuple[tuple[int, float], ...] = ()
    """Predicted peak and overhead of every stock choice that was not run."""


def study_of(name: str, folder: Path = STUDIES) -> Study:
    """Read a study and predict each of its rows."""
    ledger = read_ledger(str(folder / name))
    job = normalize(load(str(folder / name / "job.yaml"), *RAN.get(name, ())))
    predictor, cost = Predictor(job), CostModel(job, find_gpu("h200"))
    runs: dict[str, list[Row]] = {}
    for row in ledger.rows:
        if row.outcome is Outcome.PASS:
            runs.setdefault(row.candidate, []).append(row)
    base = statistics.median(_step(row) for row in runs["[]"])
    none = predictor.predict(choice_of_text("[]"))
    found = []
    for candidate, rows in runs.items():
        choice = choice_of_text(candidate)
        predicted = predictor.predict(choice)
        step = statistics.median(_step(row) for row in rows)
        found.append(
            Figures(
                study=name,
                candidate=candidate,
                choice=choice,
                peak=max(_peak(row) for row in rows),
                static=rows[0].static_bytes or 0,
                after=_after(rows[0]),
                step=step,
                busy=statistics.median((row.kernel_seconds or 0) / _step(row) for row in rows),
                overhead=step / base - 1,
                predicted_peak=predicted.hot.peak.peak_bytes,
                predicted_activation=predicted.hot.activation_bytes_at_peak,
                predicted_after=predicted.hot.growth_after_forward,
                predicted_overhead=cost.overhead(none, predicted),
            )
        )
    controls = [_step(row) for row in runs["[]"]]
    return Study(
        name=name,
        rows=tuple(found),
        noise=(max(controls) - min(controls)) / base,
        probe=_probe([row for rows in runs.values() for row in rows]),
        unmeasured=_unmeasured(job, runs) if name in MAIN else (),
    )


def _unmeasured(job: JobConfig, runs: Mapping[str, object]) -> tuple[tuple[int, float], ...]:
    answer = plan(job, f"{1 << 50}", details=False)
    return tuple(
        (outcome.peak_bytes, outcome.step_time_overhead)
        for outcome in answer.alternatives
        if text_of(outcome.choice) not in runs
    )


def _step(row: Row) -> float:
    return statistics.median(row.steady_seconds)


def _peak(row: Row) -> int:
    return max(p.allocated_peak_bytes or 0 for p in row.phases if p.phase not in OUTSIDE)


def _after(row: Row) -> int | None:
    ends = {phase.phase: phase.allocated_end_bytes for phase in row.phases}
    end = ends.get("loss")
    return None if end is None or row.static_bytes is None else end - row.static_bytes


def _probe(rows: Sequence[Row]) -> float | None:
    """Seconds a steady step; the profiled step after them passes the probe as well."""
    spent = [
        row.probe_steady_seconds / (len(row.steady_seconds) + 1)
        for row in rows
        if row.probe_steady_seconds is not None
    ]
    return statistics.median(spent) if spent else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """At one budget: what the plan takes among the measured choices, and the best of them."""

    budget: int
    taken: Figures | None
    best: Figures
    stock: Figures | None
    """The best that stock Megatron can be told."""

    @property
    def loss(self) -> float | None:
        """How much longer the taken choice's step is than the best one's, as a fraction."""
        return None if self.taken is None else self.taken.step / self.best.step - 1


def planned(rows: Sequence[Figures]) -> Iterator[Planned]:
    """Yield one answer for every measured peak as a budget.

    The plan knows predictions alone: the cheapest predicted of those predicted to fit. The best is the
    fastest measured of those that fit as measured.
    """
    for budget in sorted({row.peak for row in rows}):
        fitting = [row for row in rows if row.peak <= budget]
        foreseen = [row for row in rows if row.predicted_peak <= budget + TOLERANCE * budget]
        stock = [row for row in fitting if row.stock]
        yield Planned(
            budget=budget,
            taken=min(
                foreseen, key=lambda r: (r.predicted_overhead, r.predicted_peak), default=None
            ),
            best=min(fitting, key=lambda r: r.step),
            stock=min(stock, key=lambda r: r.step, default=None),
        )


TOLERANCE: Final = 0.0005
"""Of a budget: budgets here are measured peaks, and a prediction may lie a hair beside its own."""


def gains(
    rows: Sequence[Figures], unmeasured: Sequence[tuple[int, float]], points: int = 20
) -> list[tuple[int, float, float]]:
    """Return budget, best stock overhead and best overhead with per-layer plans, over a grid of budgets.

    Stock choices that were not run count with their predictions, so that no plan per layer wins because its
    rival was left out.
    """
    stock = [row for row in rows if row.stock]
    low, high = min(r.peak for r in stock), max(r.peak for r in stock if r.candidate == "[]")
    found = []
    for index in range(points):
        budget = low + (high - low) * index // points
        others = [overhead for peak, overhead in unmeasured if peak <= budget]
        plain = min([*others, *(r.overhead for r in stock if r.peak <= budget)], default=None)
        layered = min([*others, *(r.overhead for r in rows if r.peak <= budget)], default=None)
        if plain is not None and layered is not None:
            found.append((budget, plain, layered))
    return found
