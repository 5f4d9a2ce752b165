"""The model against single steps that were recorded allocation by allocation on an H200.

``benchmarks/studies/traces.py`` made them; predictions for the Gated DeltaNet rows were written down before.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import study_figures as studies
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.measure.candidate import choice_of_text
from recompute.timeline.predict import Predictor
from recompute.timeline.types import Phase, RankPeak

ROWS = json.loads((studies.STUDIES / "traces.json").read_text("utf-8"))["rows"]


def name_of(row: dict[str, Any]) -> str:
    return f"{row['study']}-{row['candidate']}"


def predicted(row: dict[str, Any]) -> RankPeak:
    path = studies.STUDIES / f"{row['study']}.yaml"
    job = normalize(load(str(path), *filter(None, row["overrides"].split(","))))
    return Predictor(job).predict(choice_of_text(row["candidate"])).hot


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_peak_of_a_recorded_step(row: dict[str, Any]) -> None:
    hot = predicted(row)
    assert hot.activation_bytes_at_peak == pytest.approx(row["peak"], rel=0.004)
    assert hot.static.total == pytest.approx(row["static"], rel=0.01)


@pytest.mark.parametrize("row", [r for r in ROWS if r["study"] == "gdn"], ids=name_of)
def test_the_mixer_holds_its_local_variables_until_it_returns(row: dict[str, Any]) -> None:
    hot = predicted(row)
    forward = next(p.peak_bytes for p in hot.phases if p.phase is Phase.FORWARD)
    assert forward - hot.static.total == pytest.approx(row["before_head"], rel=0.002)
