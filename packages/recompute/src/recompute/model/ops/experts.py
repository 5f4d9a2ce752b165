"""Routed experts: two linears and an activation weighted by the routing probabilities.

N tokens that this rank's experts process, D their width, F the width of one expert on this rank.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/experts.py TEGroupedMLP and
SequentialMLP; TransformerEngine v2.20 transformer_engine/pytorch/module/grouped_linear.py.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.ops.mlp import activation_ops
from recompute.model.ops.permutation import Routed, routed
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Op, OpClass, Region, Tensor

FC1, FC2 = "mlp.experts.linear_fc1", "mlp.experts.linear_fc2"
ACTIVATION = "mlp.experts.activation_func"
GLU_FUNCTIONS = ("silu", "quick_gelu")


def experts(model: ModelConfig, shape: Shape, target: str) -> tuple[Op, ...]:
    """Operations from ``experts.input`` [N, D] and ``experts.probs`` [N] to the output [N, D].

    Grouped or sequential, the same tensors live: a sequential expert reads a slice of the permuted
    tokens, and its outputs are joined in one more copy.
    """
    counts = routed(model, shape)
    width = shape.expert_ffn * (2 if model.gated_linear_unit else 1)
    source, pads = "experts.input", counts.padded > counts.received
    ops: list[Op] = []
    if pads:
        ops.append(_pad(counts))
        source = "experts.padded_input"
    if model.moe_apply_probs_on_input:
        ops.append(_weigh_input(counts, source))
        source = "experts.weighted_input"
    ops.append(_linear(model, shape, FC1, (source, "experts.fc1_out"), (0, width)))
    ops += _activation(model, shape, counts)
    output, wanted = "experts.fc2_out", target
    target = "experts.padded_output" if pads else target
    sequential = not model.moe_grouped_gemm and shape.local_experts > 1
    biased = model.moe_grouped_gemm and model.add_bias_linear
    joined = output if sequential or biased else target
    second = _linear(model, shape, FC2, ("experts.fc2_in", joined), (shape.expert_ffn, 0))
    if model.moe_grouped_gemm:  # the forward function's own variable
        second = replace(second, reads_without_grad=("experts.fc1_out",))
    ops.append(second)
    if sequential or biased:
        ops.append(_join(counts, output, target, biased=biased))
    if pads:
        size = counts.received * counts.token
        ops.append(_copy("unpadding", (target,), (Tensor(name=wanted, size=size),)))
    return tuple(ops)


def moe_act_region(model: ModelConfig) -> Region:
    """The ``moe_act`` label: the weighted activation's output goes once the second linear has run."""
    first = f"{ACTIVATION}.chunk" if _has_chunk(model) else ACTIVATION
    return Region(
        label="moe_act",
        mechanism=Mechanism.DISCARD,
        first=first,
        last="mlp.experts.weighted_activation" if _is_split(model) else ACTIVATION,
        hook=FC2,
        originals=(FC2,),
    )


def _is_split(model: ModelConfig) -> bool:
    """Say whether probabilities are multiplied in after the activation, as an operation of its own."""
    if model.use_fused_weighted_squared_relu and model.activation_func == "squared_relu":
        return False
    return model.use_te_activation_func or not model.bias_activation_fusion


def _has_chunk(model: ModelConfig) -> bool:
    return _is_split(model) and model.gated_linear_unit and not model.use_te_activation_func


def _pad(counts: Routed) -> Op:
    """Fill each expert's tokens up: a copy (``Fp8Padding``)."""
    return _copy(
        "padding",
        ("experts.input", "experts.probs"),
        (
            Tensor(name="experts.padded_input", size=counts.padded * counts.token),
            Tensor(name="experts.padded_probs", size=counts.padded * counts.prob),
        ),
    )


def _copy(name: str, sources: tuple[str, ...], targets: tuple[Tensor, ...]) -> Op:
    return Op(
        name=f"mlp.experts.{name}",
        kind=OpClass.ROUTING,
        reads=sources,
        writes=targets,
        traffic=2 * sum(tensor.size for tensor in targets),
    )


def _probs(counts: Routed) -> str:
    """Name the probabilities that the activation reads."""
    return "experts.padded_probs" if counts.padded > counts.received else "experts.probs"


def _weigh_input(counts: Routed, source: str) -> Op:
    """Multiply the tokens with their probabilities before the first linear (``topk`` is 1)."""
    size = counts.padded * counts.token
    return Op(
        name="mlp.experts.weighted_input",
        kind=OpClass.ELEMENTWISE,
        reads=(source, _probs(counts)),
        writes=(Tensor(name="experts.weighted_input", size=size),),
        saves=(source, _probs(counts)),
        traffic=2 * size,
    )


def _linear(
    model: ModelConfig,
    shape: Shape,
    name: str,
    names: tuple[str, str],
    widths: tuple[int, int],
) -> Op:
    """A grouped linear over all local experts; a width of zero is that of the travelling token."""
    (source, target), counts = names, routed(model, shape)
    token = model.moe_latent_size or shape.hidden
    inputs, outputs = widths[0] or token, widths[1] or token
    bias = outputs if model.add_bias_linear else 0
    return Op(
        name=name,
        kind=OpClass.GEMM,
        reads=(source,),
        writes=(Tensor(name=target, size=counts.padded * outputs * shape.act),),
        saves=(source,),
        weight_bytes=shape.local_experts * (inputs * outputs + bias) * shape.act,
        weights=shape.local_experts,
        widths=(inputs, outputs),
        expert=True,
        flops=2 * counts.padded * inputs * outputs,
        traffic=counts.padded * (inputs + outputs) * shape.act,
    )


def _activation(model: ModelConfig, shape: Shape, counts: Routed) -> tuple[Op, ...]:
    """From the first linear's output to the second one's input, probabilities applied."""
    elements = counts.padded * shape.expert_ffn
    if not _is_split(model):
        return (_fused(model, shape, counts, elements),)
    probs = "experts.ones" if model.moe_apply_probs_on_input else _probs(counts)
    plain = activation_ops(
        "mlp.experts",
        "experts.fc1_out",
        "experts.activated",
        model=model,
        elements=elements,
        act=shape.act,
        adds_bias=model.add_bias_linear and not model.moe_grouped_gemm,
    )
    return *plain, _weigh(shape, counts, elements, probs)


def _fused(model: ModelConfig, shape: Shape, counts: Routed, elements: int) -> Op:
    """One kernel for activation and probabilities; keeps its input and the probabilities."""
    gated = model.gated_linear_unit and model.activation_func in GLU_FUNCTIONS
    squared = model.use_fused_weighted_squared_relu and model.activation_func == "squared_relu"
    if not gated and not squared:
        raise UnsupportedError(
            "unsupported-expert-activation",
            f"no fused weighted activation exists for {model.activation_func}",
            hint="set model.bias_activation_fusion=false",
            data={"field": "model.bias_activation_fusion"},
        )
    width, probs = 2 if gated else 1, _probs(counts)
    size = elements * shape.act
    stored = model.activation_func_fp8_input_store and gated
    copies = (Tensor(name="experts.fc1_out.fp8", size=elements * width),) if stored else ()
    return Op(
        name=ACTIVATION,
        kind=OpClass.ELEMENTWISE,
        reads=("experts.fc1_out", probs),
        writes=(Tensor(name="experts.fc2_in", size=size),),
        saves=(probs,) if stored else ("experts.fc1_out", probs),
        keeps=copies,
        traffic=size * (width + 1),
        flops=8 * elements,
    )


def _weigh(shape: Shape, counts: Routed, elements: int, probs: str) -> Op:
    """Multiply the activation with the probabilities; both factors are kept.

    FP32 probabilities make the product FP32 for a moment, forward and backward.
    """
    size = elements * shape.act
    wide = elements * counts.prob if counts.prob > shape.act else 0
    given = probs != "experts.ones"
    ones = () if given else (Tensor(name=probs, size=counts.padded * counts.prob),)
    return Op(
        name="mlp.experts.weighted_activation",
        kind=OpClass.ELEMENTWISE,
        reads=("experts.activated", probs) if given else ("experts.activated",),
        writes=(Tensor(name="experts.fc2_in", size=size),),
        saves=("experts.activated", probs) if given else (),
        keeps=ones,
        forward_workspace=wide,
        backward_workspace=(2 * wide) or size,
        traffic=2 * size,
    )


def _join(counts: Routed, source: str, target: str, *, biased: bool) -> Op:
    """Outputs of the experts as one tensor: a copy, with the weighted bias added where there is one."""
    size, probs = counts.padded * counts.token, _probs(counts)
    return Op(
        name="mlp.experts.output",
        kind=OpClass.ELEMENTWISE,
        reads=(source, probs) if biased else (source,),
        writes=(Tensor(name=target, size=size),),
        saves=(probs,) if biased else (),
        passes_grad=True,
        forward_workspace=size if biased else 0,
        traffic=2 * size,
    )
