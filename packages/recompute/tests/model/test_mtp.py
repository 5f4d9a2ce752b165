"""A depth of multi-token prediction costs a layer and a head of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recompute.config.schema import FrameworkConfig
from recompute.model.layer import LAYER_KINDS
from recompute.model.ops.ends import final_norm_tape, head_tape
from recompute.model.run import profile
from recompute.model.shape import shape_of

from .jobs import GRADS, job

JOB = job(num_moe_experts=None, vocab_size=65536)
SHAPE = shape_of(JOB)
DEPTH = LAYER_KINDS["mtp+attention+mlp"](JOB.model, SHAPE)


def saved(*labels: str) -> int:
    return profile(DEPTH, frozenset(labels), GRADS).saved


def test_a_depth_keeps_a_layer_a_head_and_the_streams_it_joins() -> None:
    layer = profile(LAYER_KINDS["attention+mlp"](JOB.model, SHAPE), frozenset(), GRADS).saved
    head = profile(head_tape(JOB.model, SHAPE, owns_weight=True), frozenset(), GRADS).saved
    stream = SHAPE.stream
    extra = saved() - layer - head
    # the next embedding and the decoder's normed output, both normed and joined, the depth's own output
    # before its norm, and both streams; statistics of norms and indices are small
    assert 7 * stream <= extra < 7.05 * stream


def test_the_norm_stands_before_the_depths_and_the_head_keeps_a_view_of_the_streams() -> None:
    plain = job(num_moe_experts=None, vocab_size=65536, mtp_num_layers=None)
    alone, behind = (
        profile(head_tape(one.model, SHAPE, owns_weight=True), frozenset(), GRADS)
        for one in (plain, JOB)
    )
    final = profile(final_norm_tape(JOB.model, SHAPE), frozenset(), GRADS)
    assert alone.saved - behind.saved == final.saved + SHAPE.stream
    assert final.saved == pytest.approx(SHAPE.stream, rel=0.01)


@pytest.mark.parametrize("depths", [1, 2, 3])
def test_all_depths_share_one_joined_tensor(depths: int) -> None:
    deep = job(num_moe_experts=None, vocab_size=65536, mtp_num_layers=depths)
    tape = LAYER_KINDS["mtp+attention+mlp"](deep.model, SHAPE)
    joined = next(t for op in tape.ops for t in op.writes if t.name == "streams")
    assert depths * joined.size == pytest.approx((1 + depths) * SHAPE.stream, abs=depths)


def test_full_recompute_of_a_depth_leaves_its_logits() -> None:
    run = profile(DEPTH, frozenset({"full"}), GRADS)
    logits = SHAPE.tokens * SHAPE.vocab * 4
    assert logits < run.saved < logits + 8 * SHAPE.stream
    assert "mtp.output_layer" not in run.replayed
    assert "mtp.embedding" not in run.replayed
    assert "mlp.linear_fc1" in run.replayed


def test_the_gradient_reaches_the_decoder_through_both_losses() -> None:
    shared = [op for op in DEPTH.ops if "hidden" in op.reads]
    assert [op.name for op in shared] == ["mtp.hnorm", "mtp.join_streams"]


@pytest.mark.parametrize("engine", ["2.14", "2.20"])
def test_the_engines_cross_entropy_writes_a_depths_gradient_over_its_own_logits(
    engine: str,
) -> None:
    te = job(
        num_moe_experts=None,
        vocab_size=65536,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="te",
    )
    te = replace(te, framework=FrameworkConfig(transformer_engine=engine))
    tape = LAYER_KINDS["mtp+attention+mlp"](te.model, shape_of(te))
    run = profile(tape, frozenset(), GRADS)
    assert saved() - run.saved == pytest.approx(2 * SHAPE.tokens * SHAPE.vocab, rel=0.01)
