"""Plans against a study in which every choice of one dense model was run (h200_planning.json).

The model and the rates are older than the study.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from recompute.config.choice import RecomputeChoice, selective
from recompute.search.plan import plan
from recompute.timeline.predict import Predictor

from ..timeline.test_study import choice_of_row, job_of

ROWS = json.loads(
    (Path(__file__).parent.parent / "data" / "h200_planning.json").read_text("utf-8")
)["rows"]
JOB = job_of(ROWS[0])
STATIC = Predictor(JOB).predict(selective()).hot.static.total
SLACK = 64 << 20
"""Bytes by which a budget exceeds a measured peak, for the drift of static bytes between rows."""


def measured() -> dict[RecomputeChoice, tuple[int, list[float]]]:
    """Peak and fastest step of each run of every stock choice."""
    found: dict[RecomputeChoice, tuple[int, list[float]]] = {}
    for row in ROWS:
        if row["mlp_layers"] is None:
            figures = row["measured"]
            peak = max(figures["forward_peak"], figures["backward_peak"]) + STATIC
            _, times = found.setdefault(choice_of_row(row), (peak, []))
            times.append(min(figures["step_ms"]))
    return found


STUDY = measured()
FASTEST = {choice: min(times) for choice, (_, times) in STUDY.items()}
NOISE = max(STUDY[selective()][1]) / min(STUDY[selective()][1]) - 1


@pytest.mark.parametrize("budget", sorted({peak for peak, _ in STUDY.values()}))
def test_the_planned_choice_is_as_fast_as_the_best_measured_one(budget: int) -> None:
    ranked = [
        outcome.choice
        for outcome in plan(JOB, budget=str(budget + SLACK)).alternatives
        if outcome.fits and outcome.choice in STUDY
    ]
    best = min(FASTEST[c] for c, (peak, _) in STUDY.items() if peak <= budget + SLACK)
    assert FASTEST[ranked[0]] / best - 1 <= max(0.02, NOISE)


def test_step_time_overheads() -> None:
    predicted = {
        outcome.choice: outcome.step_time_overhead
        for outcome in plan(JOB, budget=str(10**12)).alternatives
    }
    control = FASTEST[selective()]
    errors = sorted(
        abs(predicted[choice] - (time / control - 1))
        for choice, time in FASTEST.items()
        if choice in predicted
    )
    assert len(errors) >= 15
    assert statistics.median(errors) <= 0.02
    assert errors[-1] <= 0.05
