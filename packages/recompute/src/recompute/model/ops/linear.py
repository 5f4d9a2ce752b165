"""Linear layers and norms, of Transformer Engine and of Megatron's local spec.

T tokens before sequence parallelism, S after it, H hidden, N output width on this rank.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor


def norm_statistics(model: ModelConfig, name: str, rows: int) -> tuple[Tensor, ...]:
    """Return the statistics a norm keeps, FP32 per row: mean and inverse deviation.

    RMSNorm keeps the inverse deviation alone (TransformerEngine v2.20
    transformer_engine/pytorch/module/_common.py ``apply_normalization``).
    """
    kinds = ("rstd",) if model.normalization == "RMSNorm" else ("mean", "rstd")
    return tuple(Tensor(name=f"{name}.{kind}", size=rows * 4) for kind in kinds)


def norm_weight(model: ModelConfig, width: int, dtype: int) -> int:
    """Bytes of a norm's parameters."""
    return width * dtype * (1 if model.normalization == "RMSNorm" else 2)


def norm(
    name: str,
    source: str,
    target: str,
    *,
    model: ModelConfig,
    shape: Shape,
    width: int | None = None,
) -> Op:
    """A norm of its own over [S, width]: keeps its input and statistics [S].

    Args:
        name: Operation name.
        source: Tensor that it reads.
        target: Tensor that it writes.
        model: The job's model.
        shape: Sizes on one rank.
        width: Normalised width; the hidden size unless given.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/fusions/fused_layer_norm.py,
    TransformerEngine v2.20 transformer_engine/pytorch/ops/basic/rmsnorm.py.
    """
    tokens, width = shape.stream_tokens, width or shape.hidden
    size = tokens * width * shape.act
    return Op(
        name=name,
        kind=OpClass.NORM,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        saves=(source,),
        keeps=norm_statistics(model, name, tokens),
        weight_bytes=norm_weight(model, width, shape.act),
        traffic=2 * size,
        flops=8 * tokens * width,
    )


def column_linear(
    name: str,
    source: str,
    target: str,
    *,
    shape: Shape,
    width: int,
    bias: bool,
    inputs: int | None = None,
    engine: bool = True,
) -> Op:
    """A column-parallel linear: reads [S, inputs], writes [T, N], keeps its input as it lies.

    ``inputs`` is the hidden size unless given.

    Under sequence parallelism the input is gathered over the tensor group for the GEMM and gathered
    again in backward; what is kept is the shard (NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication).
    Megatron's own layer (``engine=False``, and every one of the local spec) gathers into a buffer that
    all of them share and that stays (:mod:`recompute.timeline.workspaces`).
    """
    inputs = inputs or shape.hidden
    gathered = shape.tokens * inputs * shape.act
    shard = shape.stream_tokens * inputs * shape.act
    parallel = shape.sequence_parallel and shape.tp > 1
    owned = engine and not shape.local
    output = shape.tokens * width * shape.act
    return Op(
        name=name,
        kind=OpClass.GEMM,
        reads=(source,),
        writes=(Tensor(name=target, size=output),),
        saves=(source,),
        weight_bytes=inputs * width * shape.act + (width * shape.act if bias else 0),
        widths=(inputs, width),
        forward_workspace=gathered if parallel and owned else 0,
        backward_workspace=gathered * (2 if owned else 1) if parallel else 0,
        flops=2 * shape.tokens * inputs * width,
        traffic=gathered + output,
        comm=((Link.TENSOR, gathered - shard),) if parallel else (),
    )


def duplicated_linear(
    name: str,
    source: str,
    target: str,
    *,
    shape: Shape,
    inputs: int,
    width: int,
    bias: bool = False,
) -> Op:
    """A linear with the whole weight on every tensor-parallel rank: reads [S, inputs], writes [S, N].

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/extensions/transformer_engine.py TELinear
    with ``parallel_mode="duplicated"``.
    """
    tokens = shape.stream_tokens
    read, written = tokens * inputs * shape.act, tokens * width * shape.act
    return Op(
        name=name,
        kind=OpClass.GEMM,
        reads=(source,),
        writes=(Tensor(name=target, size=written),),
        saves=(source,),
        weight_bytes=(inputs + bias) * width * shape.act,
        widths=(inputs, width),
        flops=2 * tokens * inputs * width,
        traffic=read + written,
    )


def row_linear(name: str, source: str, target: str, *, shape: Shape, width: int, bias: bool) -> Op:
    """A row-parallel linear: reads [T, N], writes [S, H] after a reduction over the tensor group.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/tensor_parallel/layers.py RowParallelLinear.
    """
    full = shape.tokens * shape.hidden * shape.act
    output = shape.stream_tokens * shape.hidden * shape.act
    parallel = shape.sequence_parallel and shape.tp > 1
    sent = full * (shape.tp - 1) // shape.tp * (1 if parallel else 2) if shape.tp > 1 else 0
    return Op(
        name=name,
        kind=OpClass.GEMM,
        reads=(source,),
        writes=(Tensor(name=target, size=output),),
        saves=(source,),
        weight_bytes=shape.hidden * width * shape.act + (shape.hidden * shape.act if bias else 0),
        widths=(width, shape.hidden),
        forward_workspace=full if parallel else 0,
        backward_workspace=full if parallel else 0,
        flops=2 * shape.tokens * shape.hidden * width,
        traffic=shape.tokens * width * shape.act + output,
        comm=((Link.TENSOR, sent),) if sent else (),
    )


def normed_column_linear(
    name: str,
    source: str,
    target: str,
    *,
    model: ModelConfig,
    shape: Shape,
    width: int,
    bias: bool,
    norm_name: str,
) -> tuple[Op, ...]:
    """A norm and a column-parallel linear, fused with Transformer Engine or two modules without.

    Fused or not, the norm's input, its output and its statistics are kept
    (TransformerEngine v2.20 transformer_engine/pytorch/module/layernorm_linear.py
    ``_LayerNormLinear.forward`` saves ``inputmat``, ``ln_out``, ``rsigma``). The fused form is one
    module: the ``layernorm`` label finds no norm to discard there.
    """
    normed = f"{norm_name}.output"
    linear = column_linear(name, normed, target, shape=shape, width=width, bias=bias)
    return (
        norm(norm_name, source, normed, model=model, shape=shape),
        replace(linear, norm_inside=not shape.local),
    )


def bias_dropout_add(
    name: str, source: str, residual: str, target: str, *, model: ModelConfig, shape: Shape
) -> Op:
    """Bias, dropout and residual addition over [S, H]; keeps the dropout mask, one byte an element.

    With a dropout probability of zero nothing is kept and the gradient is handed on (pytorch
    aten/src/ATen/native/Dropout.cpp returns the input). Source: NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/fusions/fused_bias_dropout.py.
    """
    elements = shape.stream_tokens * shape.hidden
    dropout = model.hidden_dropout > 0
    mask = (Tensor(name=f"{name}.mask", size=elements),) if dropout else ()
    return Op(
        name=name,
        kind=OpClass.ELEMENTWISE,
        reads=(source, residual),
        writes=(Tensor(name=target, size=shape.stream),),
        keeps=mask,
        passes_grad=True,
        new_grads=(source,) if dropout else (),
        traffic=3 * elements * shape.act + (elements if dropout else 0),
        flops=2 * elements,
    )
