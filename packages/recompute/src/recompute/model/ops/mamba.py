"""The Mamba-2 mixer with its memory-efficient kernel.

T tokens of one micro-batch on one rank before sequence parallelism, D inner width, G groups, N state
size, n heads, all on this rank. Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/ssm/mamba_mixer.py MambaMixer._ssm_training and mamba_layer.py; what the kernel keeps:
state-spaces/mamba mamba_ssm/ops/triton/ssd_combined.py MambaSplitConv1dScanCombinedFn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import normed_column_linear, row_linear
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor

CHUNK: Final = 128
"""Tokens of a chunk of the scan (``chunk_size`` of MambaMixer)."""
CONV: Final = 4
"""Taps of the causal convolution (``d_conv``)."""
EXPAND: Final = 2
FP32: Final = 4
PREFIX = "mixer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Widths of the mixer on one rank."""

    inner: int
    heads: int
    groups: int
    state: int

    @property
    def mixing(self) -> int:
        """What the convolution sees: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Output of the input projection: z, x, B, C and dt."""
        return self.inner + self.mixing + self.heads


def sizes_of(model: ModelConfig, shape: Shape) -> Sizes:
    """Work out the widths of the mixer on one rank."""
    inner = EXPAND * model.hidden_size
    if model.mamba_num_heads is not None:
        inner = model.mamba_num_heads * model.mamba_head_dim
    return Sizes(
        inner=inner // shape.tp,
        heads=inner // model.mamba_head_dim // shape.tp,
        groups=model.mamba_num_groups // shape.tp,
        state=model.mamba_state_dim,
    )


def mamba_mixer(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H]."""
    sizes = sizes_of(model, shape)
    unit = shape.tokens * shape.act
    projected = normed_column_linear(
        f"{PREFIX}.in_proj",
        source,
        "zxBCdt",
        model=model,
        shape=shape,
        width=sizes.projected,
        bias=False,
        norm_name="norm",
    )
    last = row_linear(
        f"{PREFIX}.out_proj", "mixer_normed", target, shape=shape, width=sizes.inner, bias=False
    )  # MambaMixer.forward holds the input projection's output until it returns
    return (
        *projected,
        *_reorder(shape, "before", ("zxBCdt", "scan_in"), unit * sizes.projected),
        _scan(shape, sizes),
        *_reorder(shape, "after", ("scan_out", "scanned"), unit * sizes.inner),
        _norm(shape, sizes),
        replace(last, reads_without_grad=("zxBCdt",)),
    )


def _reorder(shape: Shape, name: str, names: tuple[str, str], size: int) -> tuple[Op, ...]:
    """Batch first for the kernel, sequence first behind it: a copy unless the batch is one sequence.

    Under context parallelism tokens are exchanged for heads, which copies either way.
    """
    source, target = names
    copies = shape.batch > 1 or shape.cp > 1
    return (
        Op(
            name=f"{PREFIX}.{name}_scan",
            kind=OpClass.COMM if shape.cp > 1 else OpClass.ELEMENTWISE,
            reads=(source,),
            writes=(Tensor(name=target, size=size, storage="" if copies else source),),
            passes_grad=not copies,
            comm=((Link.CONTEXT, size * (shape.cp - 1) // shape.cp),) if shape.cp > 1 else (),
            traffic=2 * size if copies else 0,
        ),
    )


def _scan(shape: Shape, sizes: Sizes) -> Op:
    """Convolution and scan in one kernel: keeps its input and the scan's output before the gate.

    Convolved inputs, chunk states and decays live during forward and are computed again in backward. The
    states of chunks are FP32 until they have been passed on, in backward with their gradients beside them
    (``_mamba_chunk_scan_combined_bwd`` at ``_state_passing_bwd``); then copies in 16 bits take their place.
    """
    tokens = shape.tokens
    output = tokens * sizes.inner * shape.act
    final = shape.batch * sizes.inner * sizes.state * FP32
    products = tokens * CHUNK * sizes.groups * FP32
    states = -(-tokens // CHUNK) * sizes.inner * sizes.state * shape.act
    convolved = tokens * sizes.mixing * shape.act
    decays = 2 * tokens * sizes.heads * FP32
    per_token = 2 * CHUNK * (sizes.groups * sizes.state + sizes.inner) // 2
    per_token += 4 * sizes.inner * sizes.state
    batched = shape.batch > 1 or shape.cp > 1
    return Op(
        name=f"{PREFIX}.ssm",
        kind=OpClass.ATTENTION,
        reads=("scan_in",),
        writes=(Tensor(name="scan_out", size=output),),
        saves=("scan_in",) if batched else ("zxBCdt",),
        keeps=(Tensor(name="scan_ungated", size=output),),
        weight_bytes=(sizes.mixing * (CONV + 1) + 3 * sizes.heads) * shape.act,
        forward_workspace=convolved
        + decays
        + final
        + max(states + products, 3 * states - 2 * output),
        backward_workspace=2 * convolved
        + output
        + 6 * states
        + products
        + decays
        + tokens * sizes.heads * shape.act
        + 2 * final,
        flops=2 * tokens * per_token,
        traffic=tokens * (sizes.projected + 2 * sizes.inner) * shape.act + 2 * states,
    )


def _norm(shape: Shape, sizes: Sizes) -> Op:
    """RMSNorm within each group; keeps its input and a statistic a group and token."""
    size = shape.tokens * sizes.inner * shape.act
    return Op(
        name=f"{PREFIX}.norm",
        kind=OpClass.NORM,
        reads=("scanned",),
        writes=(Tensor(name="mixer_normed", size=size),),
        saves=("scanned",),
        keeps=(Tensor(name="mixer_norm.rstd", size=shape.tokens * sizes.groups * FP32),),
        weight_bytes=sizes.inner * shape.act,
        traffic=2 * size,
    )
