"""FP8 and FP4: what a quantized linear keeps of its input, and the copies of its weight.

A quantized GEMM keeps a copy of its input in its own format instead of the input; what else saved the
input keeps it in 16 bits. Source: TransformerEngine v2.20 transformer_engine/pytorch/module/linear.py,
layernorm_linear.py, grouped_linear.py (``update_usage``: only the layout that backward reads stays)
and transformer_engine/pytorch/tensor/ for scales; NVIDIA/Megatron-LM core_v0.19.0 for
``set_save_original_input``: attention.py, multi_latent_attention.py, moe/shared_experts.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.shape import Shape
from recompute.model.tape import Casts, Op, OpClass, Tensor
from recompute.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One recipe's storage."""

    element: Fraction
    """Bytes of one element, its share of the block scales included."""
    constant: int
    """Bytes of a tensor's own scale."""
    both_layouts: bool
    """Weights are stored row-wise and column-wise on every GPU; without, only before Blackwell."""
    align: int
    """Tokens of one expert are filled up to a multiple of this."""
    cast_bytes: Fraction
    """Bytes moved to quantize one 16-bit element into both layouts: it is read and two copies are
    written; with one scale of the whole tensor of now, it is read before for its largest value
    (TransformerEngine v2.20 transformer_engine/common/recipe/current_scaling.cu ``amax_kernel``,
    transformer_engine/common/cast). Delayed scaling takes the scale of earlier steps."""
    frees_layout: bool
    """A weight's column-wise copy is freed when a forward without gradients quantizes the weight again
    and does not ask for it (TransformerEngine v2.20 transformer_engine/pytorch/csrc/quantizer.cpp
    ``convert_and_update_tensor``). The module of norm and linear does not ask for it under a
    checkpoint; a linear of its own and grouped ones do (``is_fp8_activation_recompute_enabled``). Tensors
    with one scale keep theirs, as measured."""
    together: bool
    """Copies of all experts' inputs are one allocation (TransformerEngine v2.18
    transformer_engine/pytorch/csrc/extensions/cast.cpp split_quantize)."""


FORMATS: Final[dict[str, Format]] = {
    "delayed": Format(
        element=Fraction(1),
        constant=4,
        both_layouts=False,
        align=16,
        cast_bytes=Fraction(4),
        frees_layout=False,
        together=False,
    ),
    "tensorwise": Format(
        element=Fraction(1),
        constant=4,
        both_layouts=False,
        align=16,
        cast_bytes=Fraction(6),
        frees_layout=False,
        together=False,
    ),
    "blockwise": Format(
        element=1 + Fraction(4, 128),
        constant=0,
        both_layouts=True,
        align=16,
        cast_bytes=4 + Fraction(8, 128),
        frees_layout=True,
        together=True,
    ),
    "mxfp8": Format(
        element=1 + Fraction(1, 32),
        constant=0,
        both_layouts=True,
        align=32,
        cast_bytes=4 + Fraction(2, 32),
        frees_layout=True,
        together=True,
    ),
    "nvfp4": Format(
        element=Fraction(1, 2) + Fraction(1, 16),
        constant=4,
        both_layouts=True,
        align=32,
        cast_bytes=5 + Fraction(2, 16),
        frees_layout=True,
        together=True,
    ),
}
"""Recipe -> format. Block scales: FP32 per 128, E8M0 per 32, E4M3 per 16."""

KEEP_ORIGINAL: Final = ("self_attention.linear_proj", "mlp.shared_experts.linear_fc1")
"""Linears whose input something else keeps anyway: they keep it too, except under delayed scaling."""


def format_of(model: ModelConfig) -> Format | None:
    """Return the format of the model's GEMMs, ``None`` in 16 or 32 bits.

    Raises:
        UnsupportedError: ``unsupported-number-format``.
    """
    if model.fp8 is None and model.fp4 is None:
        return None
    recipe = model.fp8_recipe if model.fp8 is not None else model.fp4_recipe
    if recipe not in FORMATS:
        raise _unsupported(recipe, "model.fp8_recipe" if model.fp8 else "model.fp4_recipe")
    for field in ("fp8_dot_product_attention", "fp8_multi_head_attention"):
        if getattr(model, field):
            raise _unsupported(field, f"model.{field}")
    return FORMATS[recipe]


def padding_tokens(model: ModelConfig, shape: Shape) -> int:
    """Tokens that fill up the local experts' shares, in the mean half the alignment each."""
    kept = format_of(model)
    padded = model.moe_router_padding_for_fp8 or model.moe_router_padding_for_quantization
    if kept is None or padded:
        return 0
    return shape.local_experts * kept.align // 2


def quantized(model: ModelConfig, shape: Shape, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Let the linears of a layer keep quantized inputs and weights."""
    kept = format_of(model)
    if kept is None:
        return ops
    sizes = {tensor.name: tensor.size for op in ops for tensor in op.writes}
    return tuple(
        _narrow(model, shape, kept, op, sizes[(*op.reads, *op.reads_without_grad)[0]] // shape.act)
        if op.kind is OpClass.GEMM
        else op
        for op in ops
    )


def _narrow(model: ModelConfig, shape: Shape, kept: Format, op: Op, elements: int) -> Op:
    copy = _bytes(kept, elements)
    saved = copy
    if op.weights > 1 and not kept.together:
        pieces = (
            _bytes(kept, elements // op.weights),
            _token_bytes(model, shape, kept, op, elements),
        )
        saved = op.weights * cut(*pieces)
    gradient = sum(2 * _bytes(kept, tensor.size // shape.act) for tensor in op.writes)
    elements_of_weight = op.weight_bytes // shape.act
    freed = op.norm_inside and kept.frees_layout and not _stored_narrow(model)
    delayed = model.fp8 is not None and model.fp8_recipe == "delayed"
    original = op.name in KEEP_ORIGINAL and not delayed
    return replace(
        op,
        saves=op.saves if original else (),
        quantized=None if original else Tensor(name=f"{op.name}.quantized_input", size=saved),
        weight_cache=_weight_cache(model, shape, kept, elements_of_weight),
        casts=_casts(kept, op, elements, shape.act, elements_of_weight),
        remade=_bytes(kept, elements_of_weight) if freed else 0,
        forward_workspace=op.forward_workspace + 2 * copy,
        backward_workspace=op.backward_workspace
        + gradient
        + (copy if original else 0)
        + (_norm_gradient(shape, copy) if op.norm_inside else 0),
    )


def _casts(kept: Format, op: Op, elements: int, act: int, weight: int) -> Casts:
    """Bytes that quantizing the operands moves: kernels of their own, beside the products."""
    written = sum(tensor.size for tensor in op.writes) // act
    return Casts(
        source=int(elements * kept.cast_bytes),
        gradient=int(written * kept.cast_bytes),
        weight=int(weight * kept.cast_bytes),
    )


def _norm_gradient(shape: Shape, copy: int) -> int:
    """Bytes by which the norm's backward goes higher than that of the linear it is fused with.

    One function runs both: the gradient of the norm's input is made while the quantized gradients of
    the output and the weight's gradient are still there; of what the linear held, only the quantized
    input is gone (TransformerEngine v2.20 transformer_engine/pytorch/module/layernorm_linear.py
    ``_LayerNormLinear.backward``: ``clear_tensor_data(ln_out_total)``, then ``rmsnorm_bwd``). In 16 bits
    that input is as large as the gradient, and nothing is higher.
    """
    return max(0, shape.stream - copy)


def _token_bytes(model: ModelConfig, shape: Shape, kept: Format, op: Op, elements: int) -> int:
    """Bytes of one expert's tokens at their travelling width: what the first linear's copies leave."""
    tokens = elements // op.weights // max(op.widths[0], 1)
    return _bytes(kept, tokens * (model.moe_latent_size or shape.hidden))


def cut(piece: int, block: int) -> int:
    """Return what a piece takes of a freed block, in the mean.

    PyTorch does not split a block when 1 MiB or less would be left (c10/cuda/CUDACachingAllocator.cpp
    ``should_split``), so the last piece takes the rest with it.

    Args:
        piece: Bytes of one allocation.
        block: Bytes of the free blocks that are there, those of the row-wise copies before.
    """
    if piece <= MIB or piece > block:
        return piece
    count, rest = 1, block - piece
    while rest > MIB and rest >= piece:
        count, rest = count + 1, rest - piece
    return (block if rest <= MIB else count * piece) // count


def _weight_cache(model: ModelConfig, shape: Shape, kept: Format, elements: int) -> int:
    """Copies of a weight: one that forward reads, and one that backward reads where layouts differ.

    Weights that are parameters in this format already (``fp8_param``) need the second one alone.
    """
    second = kept.both_layouts or not shape.blackwell
    return (second + (not _stored_narrow(model))) * _bytes(kept, elements)


def _stored_narrow(model: ModelConfig) -> bool:
    """Say whether weights are parameters in this format already."""
    return model.fp8_param if model.fp8 is not None else model.fp4_param


def _bytes(kept: Format, elements: int) -> int:
    return int(elements * kept.element) + kept.constant


def _unsupported(what: str, field: str) -> UnsupportedError:
    return UnsupportedError(
        "unsupported-number-format",
        f"{what} is not modelled",
        hint=f"use one of {', '.join(FORMATS)}, attention in 16 bits",
        data={"field": field},
    )
