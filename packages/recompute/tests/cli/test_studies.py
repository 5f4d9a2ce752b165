"""Two public studies of Megatron Bridge, asked as a user would: does the answer agree with what ran?

NVIDIA-NeMo/Megatron-Bridge 067f987d skills/nemo-mbridge-perf-activation-recompute/SKILL.md. Nothing of the
model was fitted to their figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
MOONLIGHT = str(EXAMPLES / "moonlight-16b-study" / "job.yaml")
CONTROL = str(EXAMPLES / "moonlight-16b-study" / "control.jsonl")
NANO = str(EXAMPLES / "nemotron-3-nano-30b.yaml")


def asked(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)


def by_labels(answer: Any) -> dict[tuple[str, ...], Any]:
    return {
        tuple(item["choice"]["recompute_modules"]): item
        for item in answer["alternatives"]
        if item["choice"]["recompute_granularity"] == "selective"
        and not item["choice"]["per_layer"]
    }


@pytest.fixture(scope="module")
def nano() -> Any:
    return asked("plan", NANO, "--gpu", "h100-80gb")


def test_of_what_was_tried_on_nemotron_moe_is_the_first_to_fit(nano: Any) -> None:
    assert nano["status"] == "planned"
    found = by_labels(nano)
    assert {labels: found[labels]["fits"] for labels in STUDIED} == STUDIED
    assert next(labels for labels in found if labels in STUDIED) == ("moe",)
    assert found[()]["breaks"]["over_bytes"] > 0
    assert any("core_attn is worse than none" in line for line in nano["why"])


def test_the_answer_for_nemotron_is_what_ran_and_names_the_pools_that_decide(nano: Any) -> None:
    """Without the pools of CUDA graphs three cheaper labels that nobody tried would have room enough."""
    assert nano["choice"]["recompute_modules"] == ["moe"]
    assert any("CUDA graph pools up to 0.80 GiB more" in line for line in nano["why"])
    eager = asked("plan", NANO, "--gpu", "h100-80gb", "model.cuda_graph_impl=none")
    assert eager["choice"]["recompute_modules"] == ["moe_act", "layernorm", "shared_experts"]
    assert not any("graph pools" in line for line in eager["why"])
    ends = [answer["control"]["predicted"]["reserved_range_bytes"][1] for answer in (nano, eager)]
    assert ends[0] - ends[1] == pytest.approx(0.80 * 2**30, rel=0.02)


STUDIED = {
    (): False,
    ("core_attn",): False,
    ("moe_act",): False,
    ("moe_act", "layernorm"): False,
    ("moe",): True,
    ("layernorm", "moe"): True,
}
"""Labels in Megatron's order -> whether they trained on 80 GB."""


def test_nemotron_changes_by_what_was_measured(nano: Any) -> None:
    """Against the control after one step: 4.194 GB less; of ``moe``, 1.014 GB less with ``layernorm``."""
    found = by_labels(nano)
    peak = {labels: found[labels]["predicted"]["peak_bytes"] for labels in STUDIED}
    assert peak["moe_act",] - peak[()] == pytest.approx(-4.194e9, abs=1e7)
    assert peak["layernorm", "moe"] - peak["moe",] == pytest.approx(-1.014e9, abs=1e7)
    assert peak["moe",] == pytest.approx(64.653e9, rel=1e-3)


@pytest.mark.parametrize("budget", ["36GB", "36.2GB"])
def test_moonlight_calibrated_by_its_control_chooses_as_the_study(budget: str) -> None:
    answer = asked("plan", MOONLIGHT, "--budget", budget, "--calibrate", CONTROL)
    assert answer["choice"]["recompute_modules"] == ["moe_act"]
    found = by_labels(answer)
    assert list(found).index(("moe_act",)) < list(found).index(("mla_up_proj",))
    assert found["mla_up_proj",]["fits"]
    assert not found["core_attn",]["fits"]
    assert any("core_attn lowers the peak by" in line for line in answer["why"])


def test_moonlight_needs_nothing_where_its_control_fits() -> None:
    answer = asked("plan", MOONLIGHT, "--budget", "37GB", "--calibrate", CONTROL)
    assert answer["status"] == "already_fits"
    assert answer["choice"]["recompute_modules"] == []
    assert answer["predicted"]["peak_bytes"] == pytest.approx(36.618e9, rel=1e-6)


MOONLIGHT_MEASURED = {
    (): 36.618e9,
    ("core_attn",): 36.614e9,
    ("mla_up_proj",): 35.902e9,
    ("mla_up_proj", "mlp"): 35.917e9,
    ("moe_act",): 35.941e9,
    ("moe_act", "layernorm"): 35.949e9,
}
"""Labels in Megatron's order -> highest allocated peak, bytes."""


def test_moonlight_uncalibrated_changes_by_what_was_measured() -> None:
    """Four labels stop at the optimizer step, where no label helps: the study's floor."""
    found = by_labels(asked("plan", MOONLIGHT, "--budget", "80GB"))
    peaks = {labels: found[labels]["predicted"]["peak_bytes"] for labels in MOONLIGHT_MEASURED}
    for labels, measured in MOONLIGHT_MEASURED.items():
        assert peaks[labels] == pytest.approx(measured, rel=0.025)
        delta = measured - MOONLIGHT_MEASURED[()]
        assert peaks[labels] - peaks[()] == pytest.approx(delta, abs=0.15e9)
    lowered = [labels for labels in peaks if labels not in {(), ("core_attn",)}]
    assert len({peaks[labels] for labels in lowered}) == 1
    assert max(peaks[labels] for labels in lowered) < min(peaks[()], peaks["core_attn",])


def test_moonlight_could_hold_less_than_any_label_gives() -> None:
    """Bridge's default FP8 recipe costs this BF16 job whole masters: 2 bytes for each of 2.0e9 states."""
    answer = asked("plan", MOONLIGHT, "--budget", "36GB")
    (lever,) = (item for item in answer["cheaper_first"] if "mixed_precision" in str(item))
    assert lever["overrides"] == ["mixed_precision.fp8_recipe=delayed"]
    assert lever["peak_delta_bytes"] == pytest.approx(-2 * 2.0e9, rel=0.01)


def test_moonlight_says_how_far_uneven_routing_may_reach() -> None:
    answer = asked("explain", MOONLIGHT, "model.recompute_modules=[]")
    (rank,) = answer["ranks"]
    low, high = rank["peak_range_bytes"]
    assert low < rank["peak_bytes"] < 36.618e9 < high
    assert any("--expert-load" in item["text"] for item in answer["assumptions"])
