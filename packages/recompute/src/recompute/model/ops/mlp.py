"""The dense feed-forward sublayer.

T tokens before sequence parallelism, S after it, H hidden, F feed-forward width on this rank.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import normed_column_linear, row_linear
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Op, OpClass, Region, Tensor


def dense_mlp(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the second linear's output [S, H].

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/mlp.py MLP.forward.
    """
    gated = model.gated_linear_unit
    first = normed_column_linear(
        "mlp.linear_fc1",
        source,
        "fc1_out",
        model=model,
        shape=shape,
        width=shape.ffn * (2 if gated else 1),
        bias=model.add_bias_linear,
        norm_name="pre_mlp_layernorm",
    )
    elements = shape.tokens * shape.ffn
    activation = activation_ops(
        "mlp",
        "fc1_out",
        "fc2_in",
        model=model,
        elements=elements,
        act=shape.act,
        adds_bias=model.add_bias_linear,
    )
    second = row_linear(
        "mlp.linear_fc2",
        "fc2_in",
        target,
        shape=shape,
        width=shape.ffn,
        bias=model.add_bias_linear,
    )
    return (*first, *activation, second)


def mlp_region(model: ModelConfig) -> Region:
    """The ``mlp`` label: a checkpoint around the MLP module.

    With Transformer Engine the norm is fused into the first linear and lies inside; with the local
    spec it is a module of its own and lies outside
    (megatron/core/transformer/transformer_layer.py TransformerLayer._run_mlp).
    """
    inside = model.transformer_impl != "local"
    return Region(
        label="mlp",
        mechanism=Mechanism.CHECKPOINT,
        first="pre_mlp_layernorm" if inside else "mlp.linear_fc1",
        last="mlp.linear_fc2",
    )


def mlp_act_region(ops: tuple[Op, ...]) -> Region:
    """The activation between the two dense linears, discarded once the second one has run.

    Megatron has this boundary for routed experts only (``moe_act``); per-layer plans use it for dense
    layers too. It is safe for the same reason: what the second linear keeps is the tensor that is
    discarded and restored (megatron/core/tensor_parallel/random.py CheckpointWithoutOutput).

    Args:
        ops: Operations of :func:`dense_mlp`.
    """
    names = [op.name for op in ops]
    return Region(
        label="mlp_act",
        mechanism=Mechanism.DISCARD,
        first=names[names.index("mlp.linear_fc1") + 1],
        last=names[names.index("mlp.linear_fc2") - 1],
        hook="mlp.linear_fc2",
    )


def activation_ops(
    module: str,
    source: str,
    target: str,
    *,
    model: ModelConfig,
    elements: int,
    act: int,
    adds_bias: bool,
    copies_linear: bool = True,
) -> tuple[Op, ...]:
    """The activation between the two linears over ``elements`` outputs of ``act`` bytes.

    Args:
        module: Path of the module.
        source: Output of the first linear.
        target: Input of the second one.
        model: The job's model.
        elements: Elements of ``target``.
        act: Bytes of one element.
        adds_bias: An unfused bias is added first.
        copies_linear: The linear half of a gated activation gets an offset added (a copy).

    Fused, it keeps its input alone. Unfused and gated, PyTorch keeps the activation's input (a view
    of the first linear's output), the activated half, and a copy of the linear half, since
    ``x_linear + glu_linear_offset`` makes one (megatron/core/transformer/mlp.py MLP.forward ``glu``).
    """
    size = elements * act
    name = f"{module}.activation_func"
    fused = model.bias_activation_fusion or model.use_te_activation_func
    if fused:
        op = _fused(name, source, target, size, gated=model.gated_linear_unit)
        narrow = model.activation_func_fp8_input_store and not model.use_te_activation_func
        if narrow and model.gated_linear_unit and model.activation_func == "silu":
            stored = Tensor(name=f"{source}.fp8", size=2 * elements)
            op = replace(op, saves=(), keeps=(stored,))
        return (op,)
    ops: list[Op] = []
    if adds_bias:
        total = size * (2 if model.gated_linear_unit else 1)
        ops.append(
            Op(
                name=f"{module}.add_bias",
                kind=OpClass.ELEMENTWISE,
                reads=(source,),
                writes=(Tensor(name=f"{source}_biased", size=total),),
                passes_grad=True,
                traffic=2 * total,
            )
        )
        source = f"{source}_biased"
    if not model.gated_linear_unit:
        return (*ops, _plain(name, source, target, size, model.activation_func))
    return (*ops, *_glu(name, source, target, size, copies_linear=copies_linear))


def _fused(name: str, source: str, target: str, size: int, *, gated: bool) -> Op:
    return Op(
        name=name,
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        saves=(source,),
        traffic=size * (3 if gated else 2),
        flops=8 * size,
    )


def _plain(name: str, source: str, target: str, size: int, function: str) -> Op:
    """One pointwise function; squared ReLU keeps its own input once and the clipped one once more."""
    clipped = (Tensor(name=f"{target}.relu", size=size),) if function == "squared_relu" else ()
    return Op(
        name=name,
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        saves=() if clipped else (source,),
        keeps=clipped,
        traffic=2 * size * (2 if clipped else 1),
        flops=8 * size,
    )


def _glu(name: str, source: str, target: str, size: int, *, copies_linear: bool) -> tuple[Op, ...]:
    """Gate and linear half of a gated activation, as PyTorch runs them."""
    gate, rest = f"{target}.gate", f"{target}.linear"
    chunk = Op(
        name=f"{name}.chunk",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(
            Tensor(name=f"{gate}_in", size=size, storage=source),
            Tensor(name=f"{rest}_in", size=size, storage=source),
        ),
    )
    activated = Op(
        name=f"{name}.act",
        kind=OpClass.ELEMENTWISE,
        reads=(f"{gate}_in",),
        writes=(Tensor(name=gate, size=size),),
        saves=(f"{gate}_in",),
        traffic=2 * size,
        flops=8 * size,
    )
    offset = Op(
        name=f"{name}.offset",
        kind=OpClass.ELEMENTWISE,
        reads=(f"{rest}_in",),
        writes=(Tensor(name=rest, size=size),),
        passes_grad=True,
        traffic=2 * size,
    )
    factor = rest if copies_linear else f"{rest}_in"
    product = Op(
        name=name,
        kind=OpClass.ELEMENTWISE,
        reads=(gate, factor),
        writes=(Tensor(name=target, size=size),),
        saves=(gate, factor),
        traffic=3 * size,
    )
    return (chunk, activated, offset, product) if copies_linear else (chunk, activated, product)
