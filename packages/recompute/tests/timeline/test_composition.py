"""Laws of what a rank's bytes consist of, over small jobs whose modules hold bytes between steps."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.config.choice import RecomputeChoice, full, selective
from recompute.config.schema import JobConfig
from recompute.timeline.predict import Predictor

from .jobs import megatron_job
from .test_settings import EXPERTS

SMALL: dict[str, Any] = {
    "num_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "ffn_hidden_size": 2048,
    "vocab_size": 4096,
    "seq_length": 512,
}
BLOCKWISE = {"fp8": "e4m3", "fp8_recipe": "blockwise"}
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": EXPERTS,
    "dense in FP8": BLOCKWISE,
    "experts in FP8": {**EXPERTS, **BLOCKWISE},
    "layers offloaded whole": {"cpu_offloading": True, "cpu_offloading_num_layers": 4},
}
CHOICES = st.one_of(
    st.builds(full, st.sampled_from(["uniform", "block"]), st.integers(1, 6)),
    st.sampled_from([selective(), selective("core_attn"), selective("mlp")]),
)


def small_job(kind: str, ranks: int, batch: int = 8) -> JobConfig:
    fields = {**SMALL, **KINDS[kind], "pipeline_model_parallel_size": ranks}
    return megatron_job(gpus=ranks, batch=batch, **fields)


def test_copies_that_a_checkpoint_frees_are_not_taken_off_what_micro_batches_hold() -> None:
    """Two micro-batches on the second of three ranks, each with the input of one group of two layers."""
    row = Predictor(small_job("dense in FP8", 3)).predict(full("uniform", 2)).ranks[1]
    stream = 2 * 512 * 512 * 2
    assert row.activation_bytes_after_forward == 4 * stream
    assert row.freed_after_forward > row.activation_bytes_after_forward
    assert row.growth_after_forward < 0


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    ranks=st.sampled_from([1, 2, 3]),
    batch=st.sampled_from([2, 8]),
    choice=CHOICES,
)
def test_what_micro_batches_hold_after_forward_is_never_below_zero(
    kind: str, ranks: int, batch: int, choice: RecomputeChoice
) -> None:
    for row in Predictor(small_job(kind, ranks, batch)).predict(choice).ranks:
        assert row.activation_bytes_after_forward > 0
        assert 0 <= row.freed_after_forward <= row.static.other
        assert row.static.total + row.growth_after_forward <= row.peak.peak_bytes
