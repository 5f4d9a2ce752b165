"""The loss: what each implementation keeps, and where it peaks."""

from __future__ import annotations

import pytest

from recompute.model.ops.ends import head_tape
from recompute.model.run import profile
from recompute.model.shape import shape_of
from recompute.model.tape_profile import TapeProfile

from .jobs import GRADS, job

VOCAB = 65536


def head(**fields: object) -> TapeProfile:
    given = job(num_moe_experts=None, vocab_size=VOCAB, **fields)
    return profile(head_tape(given.model, shape_of(given), owns_weight=True), frozenset(), GRADS)


def test_the_fused_backward_needs_one_more_copy_in_fp32() -> None:
    plain, fused = head(), head(cross_entropy_loss_fusion=True)
    logits = 2 * 1024 * VOCAB  # elements: two sequences
    assert (fused.saved, fused.forward_peak) == (plain.saved, plain.forward_peak)
    # the copy beside the softmax and the bfloat16 gradient, where there was the GEMM's own need before
    assert fused.backward_peak == pytest.approx((4 + 4 + 2) * logits, rel=0.02)
    assert fused.backward_peak > fused.forward_peak > plain.backward_peak


def test_logits_in_fp32_are_turned_into_the_softmax_where_they_lie() -> None:
    narrow, wide = head(), head(bf16=False, params_dtype="fp32")
    logits = 2 * 1024 * VOCAB
    assert narrow.forward_peak - narrow.saved == pytest.approx(2 * logits, rel=0.01)  # freed logits
    assert wide.saved == pytest.approx(4 * logits, rel=0.05)
    assert wide.forward_peak == pytest.approx(wide.saved, rel=0.01)
    assert wide.backward_peak < 2 * 4 * logits  # the gradient is written over them


def test_fp16_lm_cross_entropy_changes_nothing() -> None:
    assert head(fp16_lm_cross_entropy=True) == head()
