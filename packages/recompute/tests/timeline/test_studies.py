"""The model against the studies that ``recompute measure`` made on an H200 (benchmarks/studies).

The rows were measured after the model was written, and no constant was fitted to them.
"""

from __future__ import annotations

import json
from typing import Final

import pytest

import study_report as report

CLOSE: Final = 0.005
"""Of the activation part."""
NAMES: Final = (*report.MAIN, *report.FEATURES)
STUDIES: Final = {name: report.study_of(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_peaks_and_activations_of_a_study(name: str) -> None:
    for row in STUDIES[name].rows:
        assert abs(row.activation_error) <= CLOSE, row
        assert abs(row.peak_error) <= (0.005 if name in report.MAIN else 0.04), row


@pytest.mark.parametrize("name", [n for n in report.MAIN if n != "dense-fp8"])
def test_what_forward_leaves_is_met(name: str) -> None:
    errors = [row.after_error for row in STUDIES[name].rows]
    assert max(abs(error) for error in errors if error is not None) < 0.015
    assert None not in errors


def test_every_change_of_the_peak_has_the_measured_sign() -> None:
    right, every = report._signs(tuple(STUDIES.values())).split(" of ")
    assert right == every
    assert int(every) >= 60


def test_every_pair_beyond_noise_is_ordered_as_measured() -> None:
    right, every = report._order(tuple(STUDIES.values())).split(" of ")
    assert right == every
    assert int(every) >= 319


def test_a_row_that_sent_nothing_to_the_host_is_met_as_such() -> None:
    """In moe-offload's process Megatron's manager of groups was still another model's."""
    rows = STUDIES["moe-offload"].rows
    assert all(row.after_error is not None and abs(row.after_error) < 0.001 for row in rows)


def test_overheads_of_rows_that_the_gpu_bounds() -> None:
    errors = sorted(
        abs(row.overhead_error)
        for name in report.MAIN
        for row in STUDIES[name].rows
        if row.busy >= report.BOUND and row.candidate != "[]"
    )
    assert len(errors) >= 30
    assert errors[len(errors) // 2] < 0.02
    assert errors[int(0.95 * len(errors))] < 0.05


@pytest.mark.parametrize("name", ["dense-gqa", "gqa-moe", "dense-bias", "dense-fp8"])
def test_the_planned_choice_is_the_best_measured_one_within_noise(name: str) -> None:
    study = STUDIES[name]
    bound = [row for row in study.rows if row.busy >= report.BOUND]
    for rows in (bound, [row for row in bound if row.stock]):
        losses = [answer.loss for answer in report.planned(rows)]
        assert None not in losses
        assert max(loss for loss in losses if loss is not None) <= max(0.02, study.noise)


def test_per_layer_plans_beat_stock_on_half_of_the_budgets() -> None:
    study = STUDIES["dense-gqa"]
    grid = report.gains(study.rows, study.unmeasured)
    wins = [stock - layered for _, stock, layered in grid if stock - layered > 0.002]
    assert len(wins) >= len(grid) / 2
    assert max(wins) >= 0.05


def test_gradients_with_a_plan_differ_as_equal_runs_do() -> None:
    found = json.loads((report.STUDIES / "gradients.json").read_text("utf-8"))
    assert set(found) == {"dense-bias", "gqa-moe", "mla-moe"}
    for plans in found.values():
        assert all(value < 1.5 * plans["equal runs"] for value in plans.values())


def test_the_page_names_every_measured_row() -> None:
    page = report.PAGE.read_text("utf-8")
    for study in STUDIES.values():
        part = page.partition(f"`{study.name}`: ")[2]
        assert all(f"| `{row.candidate}` | {row.peak / 2**30:.2f} |" in part for row in study.rows)


def test_plans_are_judged_by_what_fits_as_measured() -> None:
    rows = STUDIES["dense-gqa"].rows
    answers = list(report.planned(rows))
    assert [answer.budget for answer in answers] == sorted({row.peak for row in rows})
    assert all(answer.best.peak <= answer.budget for answer in answers)
