"""Two micro-batches through each other, and weight gradients that wait: the range, not the peak."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.schema import JobConfig
from recompute.model.tape import Op, OpClass, Tape, Tensor
from recompute.timeline.overlapped import paired_bound, waiting_bound
from recompute.timeline.predict import Predictor
from recompute.timeline.units_of_work import Unit

from .jobs import megatron_job

MOE: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
}
OVERLAP = {"overlap_moe_expert_parallel_comm": True}


def unit(saved: int, forward: int, backward: int, name: str = "layer") -> Unit:
    return Unit(
        name=name,
        saved=saved,
        forward_peak=forward,
        backward_peak=saved + backward,
        weight_grads=0,
    )


def high(job: JobConfig) -> tuple[int, int]:
    row = Predictor(job).predict(NO_RECOMPUTE).hot
    return row.peak.peak_bytes, row.peak_range_bytes[1]


def test_overlapping_widens_the_range_by_a_layer_at_least_and_leaves_the_peak() -> None:
    """With a small vocabulary the first pair of layers is the peak, not the loss."""
    small = {**MOE, "vocab_size": 256}
    peak, plain = high(megatron_job(batch=8, **small))
    same, wide = high(megatron_job(batch=8, **small, **OVERLAP))
    _, wider = high(megatron_job(batch=8, **small, **OVERLAP, delay_wgrad_compute=True))
    layer = Predictor(megatron_job(**small))._book.profile("attention+moe", frozenset())
    assert same == peak
    assert wide - plain >= layer.saved
    assert wider > wide


def test_where_the_loss_is_the_peak_only_the_partners_embedding_comes_on_top() -> None:
    peak, plain = high(megatron_job(batch=8, **MOE))
    same, wide = high(megatron_job(batch=8, **MOE, **OVERLAP))
    assert same == peak
    assert 0 < wide - plain < 1 << 28


def test_one_micro_batch_has_no_partner() -> None:
    assert high(megatron_job(**MOE, **OVERLAP)) == high(megatron_job(**MOE))


def test_equal_layers_hold_one_more_of_them() -> None:
    row = [unit(10, 12, 3)] * 4
    assert paired_bound(row, row) == 12, "the first pair is the highest: nothing is freed yet"


def test_a_heavy_front_fills_what_a_light_back_does_not_free() -> None:
    row = [unit(100, 100, 0), unit(1, 1, 0), unit(1, 1, 0)]
    # alone: 0 at the last layer; together 100 + 1 - 1 before the heavy one goes back, 102 - 2 there
    assert paired_bound(row, row) == 100


def test_the_partners_embedding_is_there_while_the_head_goes_back() -> None:
    row = [unit(5, 5, 0, "embedding"), unit(10, 10, 0), unit(0, 0, 50, "head")]
    assert paired_bound(row, row) == 5


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=1, max_size=8))
def test_the_bound_is_never_more_than_a_whole_micro_batch(
    parts: list[tuple[int, int, int]],
) -> None:
    row = [unit(saved, saved + more, back) for saved, more, back in parts]
    whole = sum(saved for saved, _, _ in parts) + max(more for _, more, _ in parts)
    assert 0 <= paired_bound(row, row) <= whole


def test_linears_before_and_after_the_dispatch_do_not_wait_for_each_other() -> None:
    def linear(name: str, source: str, result: Tensor) -> Op:
        return Op(
            name=name,
            kind=OpClass.GEMM,
            reads=(source,),
            writes=(result,),
            saves=(source,),
            weight_bytes=1,
        )

    first, second = Tensor(name="b", size=7), Tensor(name="c", size=20)
    tape = Tape(
        name="layer",
        inputs=(Tensor(name="a", size=5),),
        outputs=("c",),
        ops=(
            linear("self_attention.linear_qkv", "a", first),
            linear("mlp.linear_fc1", "b", second),
        ),
    )
    assert waiting_bound(tape) == 7 + 20
