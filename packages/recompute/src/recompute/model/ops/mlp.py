"""The dense feed-forward sublayer.

T tokens before sequence parallelism, S after it, H hidden, F feed-forward width on this rank.
"""

from __future__ import annotations

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
        "mlp", "fc1_out", "fc2_in", model=model, elements=elements, act=shape.act
    )
    second = row_linear(
        "mlp.linear_fc2",
        "fc2_in",
        target,
        model=model,
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


def activation_ops(
    module: str, source: str, target: str, *, model: ModelConfig, elements: int, act: int
) -> tuple[Op, ...]:
    """The activation between the two linears over ``elements`` outputs of ``act`` bytes.

    Fused, it keeps its input alone. Unfused and gated, PyTorch keeps the activation's input (a view
    of the first linear's output), the activated half, and a copy of the linear half, since
    ``x_linear + glu_linear_offset`` makes one (megatron/core/transformer/mlp.py MLP.forward ``glu``).
    """
    size, bias = elements * act, model.add_bias_linear
    name = f"{module}.activation_func"
    fused = model.bias_activation_fusion or model.use_te_activation_func
    if fused:
        return (_fused(name, source, target, size, gated=model.gated_linear_unit),)
    ops: list[Op] = []
    if bias:
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
    return (*ops, *_glu(name, source, target, size))


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


def _glu(name: str, source: str, target: str, size: int) -> tuple[Op, ...]:
    half, rest = f"{target}.gate", f"{target}.linear"
    return (
        Op(
            name=f"{name}.chunk",
            kind=OpClass.ELEMENTWISE,
            reads=(source,),
            writes=(
                Tensor(name=f"{half}_in", size=size, storage=source),
                Tensor(name=f"{rest}_in", size=size, storage=source),
            ),
        ),
        Op(
            name=f"{name}.act",
            kind=OpClass.ELEMENTWISE,
            reads=(f"{half}_in",),
            writes=(Tensor(name=half, size=size),),
            saves=(f"{half}_in",),
            traffic=2 * size,
            flops=8 * size,
        ),
        Op(
            name=f"{name}.offset",
            kind=OpClass.ELEMENTWISE,
            reads=(f"{rest}_in",),
            writes=(Tensor(name=rest, size=size),),
            passes_grad=True,
            traffic=2 * size,
        ),
        Op(
            name=name,
            kind=OpClass.ELEMENTWISE,
            reads=(half, rest),
            writes=(Tensor(name=target, size=size),),
            saves=(half, rest),
            traffic=3 * size,
        ),
    )
