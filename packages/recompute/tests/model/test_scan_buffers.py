"""What the wrapper of Mamba's scan allocates, against figures of the wrapper itself.

mamba-ssm 2.3.2 ``mamba_split_conv1d_scan_combined`` ran on a CPU with its kernels left out: its Python
code allocates every buffer, and each was followed from its making to its end. Multiprocessors: 132.
"""

from __future__ import annotations

import pytest

from recompute.model.ops.mamba import mamba_mixer
from recompute.model.shape import shape_of
from recompute.model.tape import Op

from .jobs import job

MIB = 1 << 20
RUNS = [
    # sequences, tokens of each, inner, heads, state; MiB at the highest point of forward beyond input and
    # outputs, and of backward beyond the gradient of the input.
    ((1, 8192, 8192, 128, 128), 878 - 290 - 256, 1556.03 - 290),
    ((2, 4096, 8192, 128, 128), 882 - 290 - 256, 1560.03 - 290),
    ((1, 4096, 4096, 64, 64), 211.5 - 72.5 - 64, 300.51 - 72.5),
    ((1, 4096, 4096, 64, 256), 358.5 - 96.5 - 64, 665.01 - 96.5),
]


def scan_of(sizes: tuple[int, int, int, int, int]) -> Op:
    batch, tokens, inner, heads, state = sizes
    one = job(
        batch=batch,
        seq_length=tokens,
        mamba_num_heads=heads,
        mamba_head_dim=inner // heads,
        mamba_num_groups=8,
        mamba_state_dim=state,
        tensor_model_parallel_size=1,
        context_parallel_size=1,
    )
    ops = mamba_mixer(one.model, shape_of(one), "source", "target")
    return next(op for op in ops if op.name == "mixer.ssm")


@pytest.mark.parametrize(("sizes", "forward", "backward"), RUNS, ids=str)
def test_buffers_of_the_scan(
    sizes: tuple[int, int, int, int, int], forward: float, backward: float
) -> None:
    op = scan_of(sizes)
    assert op.forward_workspace / MIB == pytest.approx(forward, rel=0.005)
    assert op.backward_workspace / MIB == pytest.approx(backward, rel=0.005)


def test_the_mixer_holds_its_projection_until_it_returns() -> None:
    one = job(tensor_model_parallel_size=1, context_parallel_size=1)
    ops = mamba_mixer(one.model, shape_of(one), "source", "target")
    assert ops[-1].reads_without_grad == ("zxBCdt",)
