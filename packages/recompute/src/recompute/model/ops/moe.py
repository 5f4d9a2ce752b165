"""The mixture-of-experts sublayer: shared experts, router, dispatch, routed experts, combine.

S tokens of one micro-batch on one rank after sequence parallelism, T before it, H hidden.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/moe_layer.py MoELayer.forward.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.ops.dispatch import combine, dispatch, dispatcher_kind
from recompute.model.ops.experts import experts, moe_act_region
from recompute.model.ops.linear import duplicated_linear, norm
from recompute.model.ops.routing import router
from recompute.model.ops.shared_experts import (
    overlapped_finish,
    overlapped_start,
    shared_experts,
)
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Op, OpClass, Region, Tensor

NORMED = "pre_mlp_layernorm.output"


def moe_mlp(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the sublayer's output [S, H].

    The norm before it is a module of its own with either layer spec.
    """
    before = norm("pre_mlp_layernorm", source, NORMED, model=model, shape=shape)
    return before, *moe_ops(model, shape, NORMED, target)


def moe_ops(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations of MoELayer from its input [S, H] to its output [S, H]."""
    _refuse(model)
    shared = model.moe_shared_expert_intermediate_size is not None
    overlap = shared and model.moe_shared_expert_overlap
    latent = model.moe_latent_size
    ops: list[Op] = []
    if shared and not overlap:
        ops += shared_experts(model, shape, source, "shared_out")
    ops += router(model, shape, source)
    travelling = source
    if latent:
        ops.append(_latent("fc1_latent_proj", source, "latent_in", model, shape))
        travelling = "latent_in"
    if overlap:
        ops += overlapped_start(model, shape, source)
    ops += dispatch(model, shape, travelling)
    ops += experts(model, shape, "experts.output")
    routed = "routed_out" if shared or latent else target
    back = combine(model, shape, "experts.output", routed)
    sorts = shape.local_experts > 1 or shape.etp > 1
    ops += _holding_input(back) if sorts or dispatcher_kind(model) != "alltoall" else back
    if latent:
        ops.append(
            _latent("fc2_latent_proj", routed, "latent_out" if shared else target, model, shape)
        )
        routed = "latent_out"
    if overlap:
        ops += overlapped_finish(model, shape, "shared_out")
    if shared:
        ops.append(_add(shape, routed, "shared_out", target, in_place=overlap))
    return (*ops[:-1], _holding(ops))


def _holding(ops: list[Op]) -> Op:
    """Return the last operation, which also ends the life of forward's own variables.

    ``custom_forward`` holds what was permuted and what was dispatched until it returns, so both live
    through the experts though nothing saves them.
    """
    written = {tensor.name for op in ops for tensor in op.writes}
    held = tuple(n for n in ("permuted.input", "dispatched.input") if n in written)
    return replace(ops[-1], reads_without_grad=(*ops[-1].reads_without_grad, *held))


def _holding_input(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Let the experts' input live until their output is sorted back.

    ``routed_experts_compute`` holds it as its own variable while it calls the experts and
    ``combine_preprocess``; where a quantized copy is saved, nothing else does.
    """
    first = ops[0]
    return replace(first, reads_without_grad=(*first.reads_without_grad, "experts.input")), *ops[1:]


def moe_regions(model: ModelConfig, ops: tuple[Op, ...]) -> tuple[Region, ...]:
    """Labels inside a mixture of experts: ``layernorm``, ``moe``, ``moe_act``, ``shared_experts``.

    Args:
        model: The job's model.
        ops: Operations of :func:`moe_mlp`.
    """
    last = ops[-1].name
    regions = [
        Region(
            label="layernorm",
            mechanism=Mechanism.DISCARD,
            first="pre_mlp_layernorm",
            last="pre_mlp_layernorm",
            hook=last,
            originals=("mlp.shared_experts.linear_fc1",),
        ),
        Region(label="moe", mechanism=Mechanism.CHECKPOINT, first=ops[1].name, last=last),
    ]
    if model.moe_grouped_gemm:
        regions.append(moe_act_region(model))
    shared = [op.name for op in ops if op.name.startswith("mlp.shared_experts.")]
    if shared and not model.moe_shared_expert_overlap:
        regions.append(
            Region(
                label="shared_experts",
                mechanism=Mechanism.CHECKPOINT,
                first=shared[0],
                last=shared[-1],
            )
        )
    return tuple(regions)


def _refuse(model: ModelConfig) -> None:
    """Name what is not modelled."""
    refused = {
        "moe_use_legacy_grouped_gemm": model.moe_use_legacy_grouped_gemm,
        "moe_paged_stash": model.moe_paged_stash,
        "use_transformer_engine_op_fuser": model.use_transformer_engine_op_fuser,
        "moe_router_padding_for_fp8": False,
    }
    for field, set_ in refused.items():
        if set_:
            raise UnsupportedError(
                "unsupported-moe",
                f"{field} with a mixture of experts is not modelled",
                hint=f"set model.{field}=false",
                data={"field": f"model.{field}"},
            )
    dispatcher_kind(model)


def _latent(name: str, source: str, target: str, model: ModelConfig, shape: Shape) -> Op:
    """Projection to or from the latent width that travels (``moe_latent_size``)."""
    widths = (shape.hidden, model.moe_latent_size or 0)
    inputs, width = widths if name.startswith("fc1") else widths[::-1]
    return duplicated_linear(
        f"mlp.{name}",
        source,
        target,
        shape=shape,
        inputs=inputs,
        width=width,
        bias=model.add_bias_linear,
    )


def _add(shape: Shape, routed: str, shared: str, target: str, *, in_place: bool) -> Op:
    """Add the shared experts' output, into a new tensor or over the routed one."""
    size = shape.stream_tokens * shape.hidden * shape.act
    return Op(
        name="mlp.shared_add",
        kind=OpClass.ELEMENTWISE,
        reads=(routed, shared),
        writes=(Tensor(name=target, size=size, storage=routed if in_place else ""),),
        passes_grad=True,
        traffic=3 * size,
    )
