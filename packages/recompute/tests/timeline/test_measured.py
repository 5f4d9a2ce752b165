"""The model against bytes measured on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
from recompute.timeline.predict import Predictor
from recompute.timeline.types import Phase

from .jobs import job

DATA = json.loads((Path(__file__).parent.parent / "data" / "h200_dense.json").read_text("utf-8"))
PREDICTOR = Predictor(job())


def choice_of_row(row: dict[str, Any]) -> RecomputeChoice:
    if row["mlp_layers"] is not None:
        bounds = [row["mlp_layers"]] if row["mlp_layers"] else []
        spans = tuple(LayerSpan(first=a, last=b, modules=("mlp",)) for a, b in bounds)
        return RecomputeChoice(per_layer=spans)
    if row["granularity"] == "full":
        return full(row["method"], row["num_layers"])
    return selective(*(row["modules"] or ()))


@pytest.mark.parametrize("row", DATA["rows"], ids=lambda row: str(row["id"]))
def test_bytes_after_forward_are_exact(row: dict[str, Any]) -> None:
    hot = PREDICTOR.predict(choice_of_row(row)).hot
    assert hot.growth_after_forward == row["after_forward"]


@pytest.mark.parametrize("row", DATA["rows"], ids=lambda row: str(row["id"]))
def test_peak_over_static_is_within_a_tenth_of_a_percent(row: dict[str, Any]) -> None:
    hot = PREDICTOR.predict(choice_of_row(row)).hot
    assert hot.activation_bytes_at_peak == pytest.approx(row["peak_over_static"], rel=1e-3)
    assert hot.peak.phase.value == row["phase"]


def test_static_bytes() -> None:
    static = PREDICTOR.predict(selective()).hot.static
    assert static.total == pytest.approx(DATA["static_of_first_row"], rel=1e-4)
    assert (static.parameters, static.gradients) == (2 * 2_013_335_552, 0)
    assert static.optimizer == 2 * static.parameters


def test_mlp_uniform_one_and_block_six_share_one_peak() -> None:
    peaks = {
        PREDICTOR.predict(choice).hot.activation_bytes_at_peak
        for choice in (selective("mlp"), full("uniform", 1), full("block", 6))
    }
    assert len(peaks) == 1


def test_core_attn_is_worse_than_nothing() -> None:
    nothing, core = (
        PREDICTOR.predict(c).hot.peak.peak_bytes for c in (selective(), selective("core_attn"))
    )
    assert core - nothing == 662_695_936


def test_composition_sums_to_the_peak() -> None:
    for choice in (selective(), selective("mlp"), full("uniform", 4), full("block", 3)):
        hot = PREDICTOR.predict(choice, composition=True).hot
        assert sum(part.bytes for part in hot.alive_at_peak) == hot.peak.peak_bytes


def test_the_phase_of_the_peak_moves_with_the_choice() -> None:
    assert PREDICTOR.predict(selective()).hot.peak.phase is Phase.LOSS
    assert PREDICTOR.predict(full("uniform", 1)).hot.peak.phase is Phase.BACKWARD
