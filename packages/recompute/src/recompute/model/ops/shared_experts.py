"""Shared experts: a dense feed-forward that every token takes, with or without overlap.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/shared_experts.py
SharedExpertMLP.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import column_linear, row_linear
from recompute.model.ops.mlp import activation_ops
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor

PREFIX = "mlp.shared_experts"


def shared_experts(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the normed stream [S, H] to the shared experts' output [S, H]."""
    gated = model.moe_shared_expert_gate
    output = "shared_ungated" if gated else target
    ops = [
        _first(model, shape, source),
        *_activation(model, shape, copies=True),
        _second(shape, output),
    ]
    if gated:
        ops += _gate(shape, source, output, target)
    return tuple(ops)


def overlapped_start(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """What runs beside the dispatch: gate scores, gather, first linear and activation.

    Under sequence parallelism the gathered input [T, H] is kept, since the linear does no
    communication of its own (``moe_shared_expert_overlap``).
    """
    ops: list[Op] = []
    if model.moe_shared_expert_gate:
        ops.append(_scores(shape, source))
    gathers = shape.sequence_parallel and shape.tp > 1
    if gathers:
        size = shape.tokens * shape.hidden * shape.act
        ops.append(_communicate("gather", source, "shared_gathered", size, shape))
        source = "shared_gathered"
    first = _first(model, shape, source)
    ops.append(replace(first, comm=(), forward_workspace=0, backward_workspace=0))
    return *ops, *_activation(model, shape, copies=False)


def overlapped_finish(model: ModelConfig, shape: Shape, target: str) -> tuple[Op, ...]:
    """What runs beside the combine: second linear, reduction and gate."""
    output = "shared_ungated" if model.moe_shared_expert_gate else target
    second = replace(
        _second(shape, "shared_partial" if shape.tp > 1 else output),
        comm=(),
        forward_workspace=0,
        backward_workspace=0,
    )
    ops = [second]
    if shape.tp > 1:
        full = shape.tokens * shape.hidden * shape.act
        size = shape.stream_tokens * shape.hidden * shape.act
        ops = [
            replace(second, writes=(Tensor(name="shared_partial", size=full),)),
            _communicate("reduce", "shared_partial", output, size, shape),
        ]
    if model.moe_shared_expert_gate:
        ops.append(_apply(shape, output, target))
    return tuple(ops)


def _first(model: ModelConfig, shape: Shape, source: str) -> Op:
    return column_linear(
        f"{PREFIX}.linear_fc1",
        source,
        "shared_fc1_out",
        shape=shape,
        width=shape.shared_ffn * (2 if model.gated_linear_unit else 1),
        bias=False,
    )


def _activation(model: ModelConfig, shape: Shape, *, copies: bool) -> tuple[Op, ...]:
    return activation_ops(
        PREFIX,
        "shared_fc1_out",
        "shared_fc2_in",
        model=model,
        elements=shape.tokens * shape.shared_ffn,
        act=shape.act,
        adds_bias=False,
        copies_linear=copies,
    )


def _second(shape: Shape, target: str) -> Op:
    return row_linear(
        f"{PREFIX}.linear_fc2",
        "shared_fc2_in",
        target,
        shape=shape,
        width=shape.shared_ffn,
        bias=False,
    )


def _gate(shape: Shape, source: str, output: str, target: str) -> tuple[Op, ...]:
    """Sigmoid of one channel, multiplied in; the product keeps both factors."""
    return _scores(shape, source), _apply(shape, output, target)


def _scores(shape: Shape, source: str) -> Op:
    size = shape.stream_tokens * shape.act
    return Op(
        name=f"{PREFIX}.gate",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name="shared_gate", size=size),),
        saves=(source, "shared_gate"),
        weight_bytes=shape.hidden * shape.act,
        flops=2 * shape.stream_tokens * shape.hidden,
        traffic=size * shape.hidden,
    )


def _apply(shape: Shape, source: str, target: str) -> Op:
    size = shape.stream_tokens * shape.hidden * shape.act
    return Op(
        name=f"{PREFIX}.gated_output",
        kind=OpClass.ELEMENTWISE,
        reads=(source, "shared_gate"),
        writes=(Tensor(name=target, size=size),),
        saves=(source, "shared_gate"),
        backward_workspace=size,
        traffic=2 * size,
    )


def _communicate(name: str, source: str, target: str, size: int, shape: Shape) -> Op:
    return Op(
        name=f"{PREFIX}.{name}",
        kind=OpClass.COMM,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        comm=((Link.TENSOR, size * (shape.tp - 1) // shape.tp),),
        traffic=2 * size,
    )
