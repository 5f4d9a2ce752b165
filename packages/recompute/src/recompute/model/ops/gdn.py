"""Gated DeltaNet: a linear-attention mixer with a gated norm.

T tokens of one micro-batch on one rank before sequence parallelism, K key width, V value width, n key
heads and m value heads on this rank. Under context parallelism a rank holds all tokens of a share of
the heads between two all-to-alls: the same number of elements.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/ssm/gated_delta_net/gdn.py and common.py; what
the kernels keep: fla-org/flash-linear-attention fla/ops/gated_delta_rule/chunk.py,
fla/modules/l2norm.py, fla/modules/conv/triton/ops.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import (
    norm_statistics,
    norm_weight,
    normed_column_linear,
    row_linear,
)
from recompute.model.shape import Shape
from recompute.model.tape import Link, Mechanism, Op, OpClass, Region, Tensor

CHUNK: Final = 64
"""Tokens of a chunk of the delta rule's kernels."""
FP32: Final = 4
LOCALS: Final = ("conv_out", "q", "k", "v", "gate", "core_attn_out")
"""What local variables of GatedDeltaNet.forward hold until it returns, beside the projection's output."""
PREFIX = "self_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Widths of the mixer on one rank, in elements of one token."""

    key: int
    value: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    """Taps of the causal convolution."""

    @property
    def projected(self) -> int:
        """Query, key, value, gate, and two scalars a value head."""
        return 2 * self.key + 2 * self.value + 2 * self.value_heads

    @property
    def expanded(self) -> int:
        """Width of query or key once repeated to the value heads."""
        return self.value_heads * self.key_dim


def sizes_of(model: ModelConfig, shape: Shape) -> Sizes:
    """Work out the widths of the mixer on one rank."""
    key_heads = model.linear_num_key_heads // shape.tp
    value_heads = model.linear_num_value_heads // shape.tp
    return Sizes(
        key=key_heads * model.linear_key_head_dim,
        value=value_heads * model.linear_value_head_dim,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=model.linear_key_head_dim,
        value_dim=model.linear_value_head_dim,
        conv=model.linear_conv_kernel_dim,
    )


def gated_delta_net(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H]."""
    sizes = sizes_of(model, shape)
    projected = normed_column_linear(
        f"{PREFIX}.in_proj",
        source,
        "qkvzba",
        model=model,
        shape=shape,
        width=sizes.projected,
        bias=False,
        norm_name="input_layernorm",
    )
    exchange, mixed = _exchange(
        shape, "cp2hp", "qkvzba", shape.tokens * sizes.projected * shape.act
    )
    back, output = _exchange(shape, "hp2cp", "norm_out", shape.tokens * sizes.value * shape.act)
    last = row_linear(
        f"{PREFIX}.out_proj", output, target, shape=shape, width=sizes.value, bias=False
    )
    return (
        *projected,
        *exchange,
        *_prepare(shape, sizes, mixed),
        _delta_rule(shape, sizes),
        *_gated_norm(model, shape, sizes),
        *back,
        replace(last, reads_without_grad=(mixed, *LOCALS)),
    )


def gdn_regions(shape: Shape) -> tuple[Region, ...]:
    """The ``gdn_norm_out`` label: norm, gate and the all-to-all behind them; hook on the projection."""
    return (
        Region(
            label="gdn_norm_out",
            mechanism=Mechanism.DISCARD,
            first=f"{PREFIX}.out_norm",
            last=f"{PREFIX}.hp2cp" if shape.cp > 1 else f"{PREFIX}.gated_output",
            hook=f"{PREFIX}.out_proj",
        ),
    )


def _exchange(shape: Shape, name: str, source: str, size: int) -> tuple[tuple[Op, ...], str]:
    """All-to-all between tokens and heads, where there is a context group."""
    if shape.cp == 1:
        return (), source
    target = f"{source}.exchanged"
    op = Op(
        name=f"{PREFIX}.{name}",
        kind=OpClass.COMM,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        forward_workspace=size,
        backward_workspace=size,
        comm=((Link.CONTEXT, size * (shape.cp - 1) // shape.cp),),
        traffic=4 * size,
    )
    return (op,), target


def _prepare(shape: Shape, sizes: Sizes, mixed: str) -> tuple[Op, ...]:
    """Convolution, L2 norm of query and key, repetition to value heads, decay and beta.

    The convolution keeps its input as it lies, a view that holds the whole projection.
    """
    unit, tokens = shape.tokens * shape.act, shape.tokens
    mixing = 2 * sizes.key + sizes.value
    scalars = tokens * sizes.value_heads
    views = Op(
        name=f"{PREFIX}.split",
        kind=OpClass.ELEMENTWISE,
        reads=(mixed,),
        writes=(
            Tensor(name="qkv", size=unit * mixing, storage=mixed),
            Tensor(name="gate_view", size=unit * sizes.value, storage=mixed),
            Tensor(name="scalars_view", size=2 * scalars * shape.act, storage=mixed),
        ),
    )
    convolution = Op(
        name=f"{PREFIX}.conv1d",
        kind=OpClass.ELEMENTWISE,
        reads=("qkv",),
        writes=(Tensor(name="conv_out", size=unit * mixing),),
        saves=("qkv",),
        weight_bytes=mixing * sizes.conv * shape.act,
        backward_workspace=unit * mixing,
        flops=2 * tokens * mixing * sizes.conv,
        traffic=2 * unit * mixing,
    )
    return views, convolution, *_normed(shape, sizes), _scalars(shape, sizes)


def _normed(shape: Shape, sizes: Sizes) -> tuple[Op, ...]:
    """Query and key normed together, then repeated; value and gate made contiguous."""
    unit, heads = shape.tokens * shape.act, 2 * sizes.key_heads
    norm = Op(
        name=f"{PREFIX}.l2norm",
        kind=OpClass.NORM,
        reads=("conv_out",),
        writes=(
            Tensor(name="qk_normed", size=unit * 2 * sizes.key),
            Tensor(name="v", size=unit * sizes.value),
        ),
        saves=("qk_normed",),
        keeps=(Tensor(name="l2norm.rstd", size=shape.tokens * heads * FP32),),
        forward_workspace=unit * 2 * sizes.key,
        traffic=2 * unit * (2 * sizes.key + sizes.value),
    )
    repeat = Op(
        name=f"{PREFIX}.repeat",
        kind=OpClass.ELEMENTWISE,
        reads=("qk_normed",),
        writes=(
            Tensor(name="q", size=unit * sizes.expanded),
            Tensor(name="k", size=unit * sizes.expanded),
        ),
        traffic=unit * (2 * sizes.key + 2 * sizes.expanded),
    )
    gate = Op(
        name=f"{PREFIX}.gate",
        kind=OpClass.ELEMENTWISE,
        reads=("gate_view",),
        writes=(Tensor(name="gate", size=unit * sizes.value),),
        passes_grad=True,
        traffic=2 * unit * sizes.value,
    )
    return norm, repeat, gate


def _scalars(shape: Shape, sizes: Sizes) -> Op:
    """Decay in FP32 and beta, a scalar each per value head; keep their inputs."""
    scalars = shape.tokens * sizes.value_heads
    return Op(
        name=f"{PREFIX}.g_and_beta",
        kind=OpClass.ELEMENTWISE,
        reads=("scalars_view",),
        writes=(
            Tensor(name="g", size=scalars * FP32),
            Tensor(name="beta", size=scalars * shape.act),
        ),
        saves=("beta",),
        keeps=(
            Tensor(name="alpha", size=scalars * shape.act),
            Tensor(name="decay", size=scalars * FP32),
        ),
        weight_bytes=2 * sizes.value_heads * shape.act,
        traffic=6 * scalars * FP32,
    )


def _delta_rule(shape: Shape, sizes: Sizes) -> Op:
    """The chunked delta rule: keeps query, key, value, beta, summed decay and [T, m, chunk] products.

    Its states, one [key, value] matrix a chunk and head, live during forward and again in backward. Until
    the backward returns it holds w, u, the new values, their gradient and that of w, and the part of the
    key's gradient that is added last (``chunk_gated_delta_rule_bwd``; met to the byte on one H200).
    """
    tokens, heads = shape.tokens, sizes.value_heads
    states = -(-tokens // CHUNK) * heads * sizes.key_dim * sizes.value_dim * shape.act
    rows = tokens * shape.act * (sizes.expanded + 2 * sizes.value)
    per_token = CHUNK * (2 * sizes.key_dim + 2 * sizes.value_dim)
    per_token += 4 * sizes.key_dim * sizes.value_dim
    return Op(
        name=f"{PREFIX}.gated_delta_rule",
        kind=OpClass.ATTENTION,
        reads=("q", "k", "v", "g", "beta"),
        writes=(Tensor(name="core_attn_out", size=tokens * sizes.value * shape.act),),
        saves=("q", "k", "v", "beta"),
        keeps=(
            Tensor(name="decay_sums", size=tokens * heads * FP32),
            Tensor(name="chunk_products", size=tokens * heads * CHUNK * shape.act),
        ),
        forward_workspace=states + rows,
        backward_workspace=2 * states + 3 * tokens * shape.act * (sizes.expanded + sizes.value),
        flops=2 * tokens * heads * per_token,
        traffic=rows * 2 + 2 * states,
    )


def _gated_norm(model: ModelConfig, shape: Shape, sizes: Sizes) -> tuple[Op, ...]:
    """Norm over each head's values, times the activated gate; one more copy into sequence order."""
    size = shape.tokens * sizes.value * shape.act
    rows = shape.tokens * sizes.value_heads
    normed = Op(
        name=f"{PREFIX}.out_norm",
        kind=OpClass.NORM,
        reads=("core_attn_out",),
        writes=(Tensor(name="out_normed", size=size),),
        saves=("core_attn_out",),
        keeps=norm_statistics(model, "out_norm", rows),
        weight_bytes=norm_weight(model, sizes.value_dim, shape.act),
        traffic=2 * size,
    )
    output = Op(
        name=f"{PREFIX}.gated_output",
        kind=OpClass.ELEMENTWISE,
        reads=("out_normed", "gate"),
        writes=(Tensor(name="norm_out", size=size),),
        saves=("out_normed", "gate"),
        forward_workspace=size,
        backward_workspace=size,
        traffic=5 * size,
        flops=8 * shape.tokens * sizes.value,
    )
    return normed, output
