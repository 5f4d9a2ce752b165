"""Laws of what a rank's bytes consist of, over small jobs whose modules hold bytes between steps."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.config.choice import RecomputeChoice, full, selective
from recompute.config.schema import JobConfig
from recompute.timeline.moments import HELD
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
    "activations offloaded": {
        "fine_grained_activation_offloading": True,
        "offload_modules": ("attn_norm", "qkv_linear", "core_attn", "attn_proj"),
        "apply_rope_fusion": True,
    },
}
CHOICES = st.one_of(
    st.builds(full, st.sampled_from(["uniform", "block"]), st.integers(1, 6)),
    st.sampled_from([selective(), selective("core_attn"), selective("mlp")]),
)


PIPELINES = st.sampled_from([(1, None), (2, None), (3, None), (3, 2)])
"""Ranks, and chunks on each."""


def small_job(kind: str, ranks: int, batch: int = 8, chunks: int | None = None) -> JobConfig:
    fields = {**SMALL, **KINDS[kind], "pipeline_model_parallel_size": ranks}
    if chunks:
        fields["virtual_pipeline_model_parallel_size"] = chunks
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
    pipeline=PIPELINES,
    batch=st.sampled_from([6, 24]),
    choice=CHOICES,
)
def test_what_micro_batches_hold_after_forward_is_never_below_zero(
    kind: str, pipeline: tuple[int, int | None], batch: int, choice: RecomputeChoice
) -> None:
    for row in Predictor(small_job(kind, pipeline[0], batch, pipeline[1])).predict(choice).ranks:
        assert row.activation_bytes_after_forward > 0
        assert 0 <= row.freed_after_forward <= row.static.other
        assert row.static.total + row.growth_after_forward <= row.peak.peak_bytes


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    pipeline=PIPELINES,
    batch=st.sampled_from([6, 24]),
    choice=CHOICES,
)
def test_what_is_alive_is_counted_one_by_one_and_is_the_peak(
    kind: str, pipeline: tuple[int, int | None], batch: int, choice: RecomputeChoice
) -> None:
    predictor = Predictor(small_job(kind, pipeline[0], batch, pipeline[1]))
    for row in predictor.predict(choice, composition=True).ranks:
        assert all(part.bytes > 0 for part in row.alive_at_peak)
        assert sum(part.bytes for part in row.alive_at_peak) == row.peak.peak_bytes


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    pipeline=PIPELINES,
    batch=st.sampled_from([6, 24]),
    choice=CHOICES,
)
def test_no_moment_of_a_picture_shows_fewer_bytes_than_none(
    kind: str, pipeline: tuple[int, int | None], batch: int, choice: RecomputeChoice
) -> None:
    predictor = Predictor(small_job(kind, pipeline[0], batch, pipeline[1]))
    for pp in range(pipeline[0]):
        for moment in predictor.moments(choice, pp):
            assert all(part.bytes > 0 for part in moment.alive)


def test_beside_another_micro_batch_a_gradient_that_no_module_was_counted_to_hold_is_not_taken_off() -> (
    None
):
    """Micro-batches in flight have replaced all that modules held: nothing of it is left to share."""
    predictor = Predictor(small_job("experts", 2))
    row = predictor.predict(full("uniform", 2), composition=True).ranks[0]
    stream = 2 * 512 * 512 * 2
    chunk, stage = predictor.stages[0].chunks[0], predictor.stages[0]
    units = predictor._units(predictor._book, chunk, stage, full("uniform", 2))
    assert any(unit.left_gradient == stream for unit in units)
    assert sum(part.bytes for part in row.alive_at_peak) == row.peak.peak_bytes
    assert all(part.owner != HELD for part in row.alive_at_peak)
