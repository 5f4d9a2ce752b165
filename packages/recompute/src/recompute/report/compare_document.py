"""A comparison as the JSON document of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recompute.report.document import envelope
from recompute.report.plan_document import choice_document

if TYPE_CHECKING:
    from recompute.config.choice import RecomputeChoice
    from recompute.measure.types import Compared, Comparison, Measured


def compare_document(comparison: Comparison) -> dict[str, Any]:
    """Return ``recompute.compare/1``; without a job in the ledger the ``job`` object names the ledger."""
    if comparison.job is not None:
        head = envelope("compare", comparison.job)
    else:
        head = {
            "schema": "recompute.compare/1",
            "job": {"path": comparison.root, "sha256": None, "format": "ledger"},
            "changes": [],
            "assumptions": [],
        }
    control = comparison.control
    body = {
        "control": None
        if control is None
        else _measured(control, comparison)
        | {"predicted_peak_bytes": comparison.control_predicted_peak_bytes},
        "reference": None
        if comparison.reference is None
        else _measured(comparison.reference, comparison),
        "noise_floor": {
            "bytes": comparison.noise.bytes,
            "fraction": comparison.noise.fraction,
            "repeats": comparison.noise.repeats,
        },
        "candidates": [_candidate(row, comparison) for row in comparison.candidates],
        "passes": comparison.any_passes,
        "environment": dict(comparison.environment),
        "notes": list(comparison.notes),
    }
    return {**head, **body}


def _candidate(row: Compared, comparison: Comparison) -> dict[str, Any]:
    ratio = row.step_time
    return {
        **_measured(row.measured, comparison),
        "verdict": row.verdict.value,
        "reason": row.reason,
        "peak_delta_bytes": row.peak_delta_bytes,
        "step_time_overhead": None if ratio is None else ratio.overhead,
        "interval": None if ratio is None else [ratio.low, ratio.high],
        "prediction_error": row.prediction_error,
        "predicted_peak_bytes": row.predicted_peak_bytes,
        "predicted_delta_bytes": row.predicted_delta_bytes,
        "differences": list(row.differences),
    }


def _measured(figures: Measured, comparison: Comparison) -> dict[str, Any]:
    hot = figures.hot
    return {
        "choice": _choice(figures.choice, comparison),
        "candidate": figures.candidate,
        "outcome": figures.outcome.value,
        "stage": figures.stage,
        "peak_bytes": None if hot is None else hot.peak_bytes,
        "peak_rank": None if hot is None else hot.rank,
        "peak_phase": None if hot is None else hot.phase,
        "reserved_peak_bytes": figures.reserved_peak_bytes,
        "step_seconds": figures.step_seconds,
        "kernel_share": figures.kernel_share,
        "steady_steps": figures.steady_steps,
        "repeats": figures.repeats,
        "ranks": [
            {
                "rank": rank.rank,
                "peak_bytes": rank.peak_bytes,
                "peak_phase": rank.phase,
                "delta_bytes": rank.delta_bytes,
            }
            for rank in figures.ranks
        ],
        "phases": [{"phase": name, "peak_bytes": size} for name, size in figures.phases],
        "whole_step_peak_bytes": figures.whole_step_bytes,
        "notes": list(figures.notes),
    }


def _choice(choice: RecomputeChoice | None, comparison: Comparison) -> dict[str, Any] | None:
    if choice is None:
        return None
    if comparison.job is None:
        return choice.to_document()
    return choice_document(choice, comparison.job)
