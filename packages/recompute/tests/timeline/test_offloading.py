"""What sends activations to the host keeps, brings back, and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.config.choice import NO_RECOMPUTE, full, selective
from recompute.model.offload import offload_groups
from recompute.model.run import GradPolicy, profile
from recompute.model.tape_profile import TapeProfile
from recompute.timeline.layers import LayerBook
from recompute.timeline.offloading import arriving, leaves, offloading_units
from recompute.timeline.predict import Predictor
from recompute.timeline.stages import stages_of
from recompute.timeline.types import Phase, RankPeak

from .jobs import megatron_job
from .test_settings import EXPERTS

ATTENTION = ("attn_norm", "qkv_linear", "core_attn", "attn_proj")
GRADS = GradPolicy(appear_in_backward=False, fused=False)
STREAM = 2 * 4096 * 4096 * 2
"""Two sequences of 4,096 tokens, 4,096 channels, 16 bits."""
QUERY, KEY = STREAM, STREAM // 4
"""32 heads, 8 of them with keys and values."""


def fields(**more: Any) -> dict[str, Any]:
    return {
        "fine_grained_activation_offloading": True,
        "offload_modules": ATTENTION,
        "apply_rope_fusion": True,
        **more,
    }


def phase(row: RankPeak, name: Phase) -> int:
    return next(item.peak_bytes for item in row.phases if item.phase is name)


def one_layer(modules: tuple[str, ...] = ATTENTION, **more: Any) -> TapeProfile:
    job = megatron_job(**fields(offload_modules=modules, **more))
    book = LayerBook(job, 1, composition=False)
    tape = book.tape("attention+mlp")
    return profile(tape, frozenset(), GRADS, offload_groups(job.model, tape, 2))


def test_each_operation_that_saved_a_tensor_gets_one_of_its_own_back() -> None:
    """Attention's output is saved by the kernel and by the projection: one storage leaves, two return."""
    run = one_layer()
    assert run.returning == (2 * STREAM, QUERY + 2 * KEY + STREAM, STREAM)
    plain = one_layer(())
    assert plain.saved - run.saved == 2 * STREAM + QUERY + 2 * KEY + STREAM
    assert run.backward_peak == plain.backward_peak + STREAM


def test_a_copy_returns_beside_an_original_that_never_left() -> None:
    run, plain = one_layer(("core_attn",)), one_layer(())
    assert plain.saved - run.saved == QUERY + 2 * KEY
    assert run.backward_peak == plain.backward_peak + STREAM


def test_the_embedding_output_stays_an_argument_of_the_forward_until_the_loss_is_there() -> None:
    kept = Predictor(megatron_job(apply_rope_fusion=True)).predict(NO_RECOMPUTE).hot
    moved = Predictor(megatron_job(**fields())).predict(NO_RECOMPUTE).hot
    layer = 2 * STREAM + QUERY + 2 * KEY + STREAM
    assert kept.activation_bytes_after_forward - moved.activation_bytes_after_forward == 7 * layer
    assert phase(kept, Phase.LOSS) - phase(moved, Phase.LOSS) == 7 * layer - STREAM


def test_a_layer_is_whole_before_its_backward_and_brings_back_the_one_before() -> None:
    job = megatron_job(**fields())
    book, stage = LayerBook(job, 1, composition=True), stages_of(job)[0]
    chunk = stage.chunks[0]
    units = offloading_units(book, chunk, stage, book.actives(chunk, NO_RECOMPUTE))
    alone = book.profile("attention+mlp", frozenset(), offloads=True)
    whole = book.profile("attention+mlp", frozenset())
    assert [unit.saved for unit in units] == [alone.saved] * 7 + [whole.saved]
    assert units[0].backward_peak == alone.backward_peak
    groups = book.groups("attention+mlp", frozenset())
    assert [group.name for group in groups] == ["qkv_linear", "core_attn", "attn_proj"]
    ends = [(group.first, size) for group, size in zip(groups, alone.returning, strict=True)]
    assert arriving(book, ("attention+mlp", frozenset()), ("attention+mlp", frozenset())) == tuple(
        reversed(ends)
    )
    assert units[7].backward_peak >= whole.backward_peak


@pytest.mark.parametrize(("fraction", "left"), [(1.0, 7), (0.5, 4), (0.0, 0)])
def test_what_stays_at_the_end_is_how_far_reloading_is_ahead(fraction: float, left: int) -> None:
    job = megatron_job(**fields(activation_offload_fraction=fraction))
    book, stage = LayerBook(job, 1, composition=True), stages_of(job)[0]
    chunk = stage.chunks[0]
    marks = [leaves(job, index, chunk, stage) for index in range(8)]
    assert marks == [index < left for index in range(8)]
    units = offloading_units(book, chunk, stage, book.actives(chunk, NO_RECOMPUTE))
    back = [dict(unit.alive_at_backward_peak).get("activations brought back", 0) for unit in units]
    returning = sum(book.profile("attention+mlp", frozenset(), offloads=True).returning)
    # four stay of eight: while layer 3 goes back, 0 to 2 have returned; layer 4 has seen 1 to 3 return
    assert (back[3] >= 3 * returning) == (fraction == 0.5)


def test_the_replay_of_core_attention_enters_no_group() -> None:
    job = megatron_job(**fields())
    book = LayerBook(job, 1, composition=False)
    names = [group.name for group in book.groups("attention+mlp", frozenset({"core_attn"}))]
    assert names == ["qkv_linear", "attn_proj"]


def test_what_another_rank_sent_is_held_by_the_schedule() -> None:
    job = megatron_job(gpus=2, batch=8, **fields(pipeline_model_parallel_size=2))
    predictor = Predictor(job)
    first, last = (
        predictor._units(predictor._book, stage.chunks[0], stage, NO_RECOMPUTE)
        for stage in predictor.stages
    )
    inner = next(unit.saved for unit in first if unit.input_left)
    assert last[0].saved == inner + STREAM
    assert last[1].saved == inner


def test_a_separate_input_norm_empties_its_input_for_all() -> None:
    modules = ("attn_norm", "core_attn", "attn_proj")
    job = megatron_job(
        gpus=2,
        batch=8,
        **fields(offload_modules=modules, pipeline_model_parallel_size=2, transformer_impl="local"),
    )
    predictor = Predictor(job)
    stage = predictor.stages[1]
    units = predictor._units(predictor._book, stage.chunks[0], stage, NO_RECOMPUTE)
    assert units[0].saved == units[1].saved


def test_only_the_micro_batch_that_goes_back_next_keeps_the_last_layer() -> None:
    """The head has a chunk of its own, so several micro-batches of the chunk before it are in flight."""
    job = megatron_job(
        gpus=2,
        batch=8,
        **fields(
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
            pipeline_model_parallel_layout="Ettt|tttt|t|L",
        ),
    )
    predictor = Predictor(job)
    stage = predictor.stages[1]
    chunk = stage.chunks[0]
    assert stage.runs_back_at_once(chunk)
    units = predictor._units(predictor._book, chunk, stage, NO_RECOMPUTE)
    peak = predictor._chunk_peak(predictor._book, chunk, stage, NO_RECOMPUTE, units)
    returning = predictor._book.profile("attention+mlp", frozenset(), offloads=True)
    whole = predictor._book.profile("attention+mlp", frozenset())
    assert peak.front == whole.saved - returning.saved
    assert peak.saved == sum(unit.saved for unit in units) - peak.front


def test_a_depth_of_prediction_is_the_layer_that_stays() -> None:
    job = megatron_job(**fields(mtp_num_layers=1))
    stage = stages_of(job)[0]
    assert all(leaves(job, index, stage.chunks[0], stage) for index in range(8))
    plain = megatron_job(**fields())
    alone = stages_of(plain)[0]
    assert not leaves(plain, 7, alone.chunks[0], alone)


def test_full_recompute_sends_nothing() -> None:
    kept, moved = (
        Predictor(job).predict(full("uniform", 1)).hot.phases
        for job in (megatron_job(apply_rope_fusion=True), megatron_job(**fields()))
    )
    assert kept == moved
    assert Predictor(megatron_job(**fields())).predict(selective("mlp")).hot.phases != moved


GROUPS = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
LABELS = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "shared_experts")


@settings(max_examples=60, deadline=None)
@given(
    modules=st.sets(st.sampled_from(GROUPS)),
    labels=st.sets(st.sampled_from(LABELS)),
    fraction=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    ranks=st.sampled_from([1, 2]),
    experts=st.booleans(),
    depths=st.sampled_from([None, 1, 2]),
)
def test_offloading_never_keeps_more_and_what_is_alive_is_the_peak(
    *,
    modules: set[str],
    labels: set[str],
    fraction: float,
    ranks: int,
    experts: bool,
    depths: int | None,
) -> None:
    more: dict[str, Any] = EXPERTS if experts else {}
    sizes = {"pipeline_model_parallel_size": ranks, "num_layers": 4, "mtp_num_layers": depths}
    told = fields(offload_modules=tuple(sorted(modules)), activation_offload_fraction=fraction)
    choice = selective(*sorted(labels))
    plain = Predictor(megatron_job(gpus=ranks, batch=8, apply_rope_fusion=True, **more, **sizes))
    given_ = Predictor(megatron_job(gpus=ranks, batch=8, **{**told, **more, **sizes}))
    pairs = zip(
        plain.predict(choice).ranks, given_.predict(choice, composition=True).ranks, strict=True
    )
    for kept, moved in pairs:
        assert moved.activation_bytes_after_forward <= kept.activation_bytes_after_forward
        assert all(owner.bytes > 0 for owner in moved.alive_at_peak)
        alive = sum(owner.bytes for owner in moved.alive_at_peak)
        assert alive == moved.peak.peak_bytes
