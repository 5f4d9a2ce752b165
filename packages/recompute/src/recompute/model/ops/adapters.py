"""Adapters over a frozen base (``peft``): what is saved when almost nothing trains.

A frozen linear keeps no input, since only its weight's gradient needs one; norms, activations and
attention keep what they kept, since gradients still pass through them; the router keeps its input
whether it trains or not. An adapted linear adds two small ones: the first keeps the input that the
base no longer keeps, gathered under sequence parallelism, the second keeps [T, rank].
Source: NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/peft/lora_layers.py LoRALinear,
utils.py ParallelLinearAdapter and get_adapter_attributes_from_linear; TransformerEngine v2.20
transformer_engine/pytorch/module/linear.py ``backward_needs_input``; NVIDIA/Megatron-LM core_v0.19.0
megatron/core/tensor_parallel/layers.py LinearWithFrozenWeight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from recompute.config.schema import PeftConfig
from recompute.errors import UnsupportedError
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Region, Tape, Tensor

ROW_PARALLEL: Final = ("linear_proj", "linear_fc2", "out_proj")
"""Linears whose input is already split over the tensor group."""


def frozen(tape: Tape) -> Tape:
    """Return a tape whose parameters do not train."""
    return replace(tape, ops=tuple(_freeze(op) for op in tape.ops))


def adapted(tape: Tape, peft: PeftConfig, shape: Shape) -> Tape:
    """Return a layer with its base frozen and an adapter beside every targeted linear.

    Args:
        tape: A layer in 16 bits or quantized.
        peft: The adapters.
        shape: Sizes on one rank.

    Raises:
        UnsupportedError: ``unsupported-peft``: a scheme or a target pattern that is not modelled.
    """
    _refuse(peft)
    sizes = {t.name: t.size for t in tape.inputs}
    sizes.update({t.name: t.size for op in tape.ops for t in op.writes})
    ops: list[Op] = []
    wrapped: set[str] = set()
    for op in tape.ops:
        if op.kind is OpClass.GEMM and _module(op) in peft.target_modules:
            wrapped.add(op.name)
            ops += _wrap(op, peft, shape, sizes)
        else:
            ops.append(_freeze(op))
    return replace(
        tape, ops=tuple(ops), regions=tuple(_moved(region, wrapped) for region in tape.regions)
    )


def _module(op: Op) -> str:
    return op.name.rpartition(".")[2]


def _freeze(op: Op) -> Op:
    keeps_input = op.kind is not OpClass.GEMM
    return replace(
        op,
        weight_bytes=0,
        saves=op.saves if keeps_input else (),
        quantized=op.quantized if keeps_input else None,
    )


def _moved(region: Region, wrapped: set[str]) -> Region:
    """A wrapped linear begins with its base and ends where the adapter's output is added."""
    first = f"{region.first}.base" if region.first in wrapped else region.first
    return replace(region, first=first)


def _wrap(op: Op, peft: PeftConfig, shape: Shape, sizes: dict[str, int]) -> tuple[Op, ...]:
    """Base, adapter, and the addition, which bears the linear's own name."""
    source, target = op.reads[0], op.writes[0]
    base = replace(
        _freeze(op), name=f"{op.name}.base", writes=(replace(target, name=f"{target.name}.base"),)
    )
    ops, size = [base], sizes[source]
    parallel = shape.sequence_parallel and shape.tp > 1 and not op.expert
    if parallel and _module(op) not in ROW_PARALLEL:
        size *= shape.tp
        ops.append(_gather(op.name, source, size, shape))
        source = f"{op.name}.gathered"
    if peft.dropout > 0:
        ops.append(_dropout(op.name, source, size, shape))
        source = f"{op.name}.dropped"
    return (*ops, *_adapter(op, peft, shape, source, size))


def _adapter(op: Op, peft: PeftConfig, shape: Shape, source: str, size: int) -> tuple[Op, ...]:
    """The two linears of an adapter, scaling, and the addition to the base's output.

    Of a column-parallel base both linears are split over the tensor group, of a row-parallel one the
    first over its input. Routed experts of a rank share one adapter.
    """
    inputs, outputs = op.widths
    rows = size // (inputs * shape.act)
    row = _module(op) in ROW_PARALLEL
    split = 1 if op.expert or row else shape.tp
    rank, target = rows * peft.dim * shape.act, op.writes[0]
    first, second = f"{op.name}.linear_in", f"{op.name}.linear_out"
    out_split = shape.tp if row and not op.expert else 1
    added = Op(
        name=op.name,
        kind=OpClass.ELEMENTWISE,
        reads=(f"{target.name}.base", f"{op.name}.delta"),
        writes=(target,),
        passes_grad=True,
        forward_workspace=target.size,
        traffic=5 * target.size,
    )
    return (
        _small(
            first, (source, f"{op.name}.rank"), rank, inputs * peft.dim // split, rows, shape=shape
        ),
        _small(
            second,
            (f"{op.name}.rank", f"{op.name}.delta"),
            target.size,
            peft.dim * outputs // out_split,
            rows,
            shape=shape,
        ),
        added,
    )


def _small(
    name: str, names: tuple[str, str], size: int, elements: int, rows: int, *, shape: Shape
) -> Op:
    source, target = names
    return Op(
        name=name,
        kind=OpClass.GEMM,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        saves=(source,),
        weight_bytes=elements * shape.act,
        flops=2 * rows * elements,
        traffic=2 * size,
    )


def _gather(name: str, source: str, size: int, shape: Shape) -> Op:
    return Op(
        name=f"{name}.lora_gather",
        kind=OpClass.COMM,
        reads=(source,),
        writes=(Tensor(name=f"{name}.gathered", size=size),),
        comm=((Link.TENSOR, size * (shape.tp - 1) // shape.tp),),
        traffic=2 * size,
    )


def _dropout(name: str, source: str, size: int, shape: Shape) -> Op:
    return Op(
        name=f"{name}.lora_dropout",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=f"{name}.dropped", size=size),),
        keeps=(Tensor(name=f"{name}.lora_mask", size=size // shape.act),),
        traffic=2 * size,
    )


def _refuse(peft: PeftConfig) -> None:
    if peft.scheme != "lora":
        raise _unsupported(f"peft scheme {peft.scheme}", "peft.scheme")
    patterns = [name for name in peft.target_modules if "*" in name or "." in name]
    if patterns:
        raise _unsupported(f"target module {patterns[0]!r}", "peft.target_modules")


def _unsupported(what: str, field: str) -> UnsupportedError:
    return UnsupportedError(
        "unsupported-peft",
        f"{what} is not modelled",
        hint="LoRA on plain module names is",
        data={"field": field},
    )
