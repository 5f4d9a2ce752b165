"""The backward of a checkpoint, as it was recorded on an H200 (benchmarks/studies/traces.py)."""

from __future__ import annotations

from dataclasses import replace

from recompute.model.arena import rounded
from recompute.model.run import GradPolicy, profile
from recompute.model.tape import Mechanism, Op, OpClass, Region, Tape, Tensor

SIZE = 1 << 20
BUFFERS = GradPolicy(appear_in_backward=False, fused=False)
FUSED = GradPolicy(appear_in_backward=False, fused=True)


def residual_tape(workspace: int = 0) -> Tape:
    """``out = in + wide(in)``; the first operation of backward hands the gradient on to both."""
    wide = Op(
        name="wide",
        kind=OpClass.GEMM,
        reads=("in",),
        writes=(Tensor(name="mid", size=SIZE),),
        saves=("in",),
        weight_bytes=8 * SIZE,
        backward_workspace=workspace,
    )
    first = Op(
        name="first",
        kind=OpClass.ELEMENTWISE,
        reads=("start",),
        writes=(Tensor(name="in", size=SIZE),),
        saves=("start",),
        backward_workspace=16 * SIZE,
    )
    add = Op(
        name="add",
        kind=OpClass.ELEMENTWISE,
        reads=("mid", "in"),
        writes=(Tensor(name="out", size=SIZE),),
        passes_grad=True,
    )
    return Tape(
        name="layer",
        inputs=(Tensor(name="start", size=SIZE),),
        outputs=("out",),
        ops=(first, wide, add),
        regions=(Region(label="full", mechanism=Mechanism.CHECKPOINT, first="first", last="add"),),
    )


def test_what_a_checkpoint_was_handed_stays_until_it_returns() -> None:
    """The residual's gradient is added up in a new tensor, since the checkpoint holds the one it was handed."""
    tape = residual_tape()
    plain = profile(tape, frozenset(), FUSED).backward_peak
    replayed = profile(tape, frozenset({"full"}), FUSED).backward_peak
    # Beside the workspace: start and two gradients; and in the replay its output and what was handed.
    assert plain == (16 + 3) * SIZE
    assert replayed == plain + 2 * SIZE


def test_a_weights_gradient_is_made_while_the_linear_holds_its_workspace() -> None:
    apart, together = (
        profile(residual_tape(workspace=32 * SIZE), frozenset(), grads).backward_peak
        for grads in (FUSED, BUFFERS)
    )
    assert together == apart + 8 * SIZE


def test_a_copy_that_the_first_forward_freed_is_made_again_and_stays() -> None:
    tape = residual_tape()
    copied = replace(
        tape,
        ops=tuple(replace(op, remade=5 * SIZE) if op.name == "wide" else op for op in tape.ops),
    )
    replayed = frozenset({"full"})
    before, after = (profile(each, replayed, FUSED) for each in (tape, copied))
    assert after.saved == before.saved
    assert after.left_copies == after.left_behind == rounded(5 * SIZE)
    assert after.backward_peak == before.backward_peak + 5 * SIZE
    assert profile(copied, frozenset(), FUSED) == profile(tape, frozenset(), FUSED)
