"""Findings of one job do not contradict each other."""

from __future__ import annotations

from recompute.config.load import load
from recompute.config.revision import Revision
from recompute.rules.check import check


def test_one_job_is_not_told_to_drop_core_attn_and_to_write_it_out() -> None:
    text = b"""\
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, recompute_granularity: selective}
"""
    fused = check(load("-", stdin=text), Revision("0.19"))
    assert "core-attn-warning" in {finding.rule for finding in fused}
    assert not [line for finding in fused for line in finding.overrides if "core_attn" in line]
    warning = next(finding for finding in fused if finding.rule == "core-attn-warning")
    assert warning.message.startswith("recompute_modules is not set, which Megatron reads as")
    unfused = check(load("-", "model.attention_backend=unfused", stdin=text), Revision("0.19"))
    assert {"modules-none-default"} <= {finding.rule for finding in unfused}
    assert "core-attn-warning" not in {finding.rule for finding in unfused}


def test_full_without_a_method_points_to_the_planner() -> None:
    text = b"""\
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, recompute_granularity: full}
"""
    found = check(load("-", stdin=text), Revision("0.19"))
    method = next(finding for finding in found if finding.rule == "full-needs-method")
    assert "recompute plan" in method.advice
