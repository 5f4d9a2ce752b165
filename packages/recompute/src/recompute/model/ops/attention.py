"""Self-attention with multi-head or grouped-query heads.

T tokens before sequence parallelism, S after it, H hidden, Q query width, K key (= value) width.
"""

from __future__ import annotations

from dataclasses import dataclass

from recompute.config.schema import ModelConfig
from recompute.model.ops.context import exchange_of, over_context
from recompute.model.ops.linear import (
    norm_statistics,
    norm_weight,
    normed_column_linear,
    row_linear,
)
from recompute.model.shape import Shape
from recompute.model.tape import Link, Mechanism, Op, OpClass, Region, Tensor

RNG_STATE = 512
"""Bytes a fused attention kernel keeps for its random state, one rounded allocation."""


def self_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H].

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/attention.py
    SelfAttention.get_query_key_value_tensors and Attention.forward.
    """
    query, key = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    gated = model.attention_output_gate
    bias = model.add_bias_linear or model.add_qkv_bias
    projected = normed_column_linear(
        "self_attention.linear_qkv",
        source,
        "mixed_qkv",
        model=model,
        shape=shape,
        width=query * (2 if gated else 1) + 2 * key,
        bias=bias,
        norm_name="input_layernorm",
    )
    output = row_linear(
        "self_attention.linear_proj",
        "gated_attn_out" if gated else "core_attn_out",
        target,
        shape=shape,
        width=query,
        bias=model.add_bias_linear,
    )
    return (
        *projected,
        *_split(shape, gated=gated),
        *_position(model, shape),
        *_core(model, shape),
        *((_output_gate(shape),) if gated else ()),
        output,
    )


def _output_gate(shape: Shape) -> Op:
    """Multiply with the sigmoid of a gate that the projection gives; compiled, it keeps both inputs."""
    size = shape.tokens * shape.heads * shape.head_dim * shape.act
    return Op(
        name="self_attention.output_gate",
        kind=OpClass.ELEMENTWISE,
        reads=("core_attn_out", "gate"),
        writes=(Tensor(name="gated_attn_out", size=size),),
        saves=("core_attn_out", "gate"),
        traffic=3 * size,
        flops=8 * shape.tokens * shape.heads * shape.head_dim,
    )


def core_attention_region() -> Region:
    """The ``core_attn`` label: a whole-region checkpoint around core attention."""
    return Region(
        label="core_attn",
        mechanism=Mechanism.CHECKPOINT,
        first="self_attention.core_attention.inputs",
        last="self_attention.core_attention",
    )


def is_unfused(model: ModelConfig) -> bool:
    """Say whether attention materialises its scores."""
    if model.transformer_impl == "local":
        return True
    return model.attention_backend in ("unfused", "local")


def _split(shape: Shape, *, gated: bool) -> tuple[Op, ...]:
    """Views of the mixed projection; a grouped query is copied out of it (reshape of a slice)."""
    unit = shape.tokens * shape.head_dim * shape.act
    query, key = unit * shape.heads, unit * shape.groups
    grouped = shape.heads != shape.groups
    storage = "" if grouped else "mixed_qkv"
    gate = (Tensor(name="gate", size=query, storage=storage),) if gated else ()
    return (
        Op(
            name="self_attention.split",
            kind=OpClass.ELEMENTWISE,
            reads=("mixed_qkv",),
            writes=(
                Tensor(name="query", size=query, storage=storage),
                Tensor(name="key", size=key, storage="mixed_qkv"),
                Tensor(name="value", size=key, storage="mixed_qkv"),
                *gate,
            ),
            traffic=2 * query * (2 if gated else 1) if grouped else 0,
        ),
    )


def _position(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Query and key norm, then rotary embedding; each writes a new tensor."""
    ops: list[Op] = []
    for side, heads in (("query", shape.heads), ("key", shape.groups)):
        size = shape.tokens * heads * shape.head_dim * shape.act
        if model.qk_layernorm:
            ops += _head_norm(model, shape, side, heads, size)
        if model.position_embedding_type in ("rope", "yarn", "mrope"):
            ops.append(_rope(model, shape, side, _normed(model, side), size))
    return tuple(ops)


def _head_norm(
    model: ModelConfig, shape: Shape, side: str, heads: int, size: int
) -> tuple[Op, ...]:
    """Norm over each head's channels: keeps its input and one statistic a head and token.

    Transformer Engine makes a view of the mixed projection contiguous first, so the copy is kept and
    not the projection (TransformerEngine v2.20 transformer_engine/pytorch/ops/basic/rmsnorm.py).
    """
    te = model.transformer_impl != "local"
    is_view = te and (side == "key" or shape.heads == shape.groups)
    source = f"{side}_contiguous" if is_view else side
    copy = Op(
        name=f"self_attention.{side[0]}_contiguous",
        kind=OpClass.ELEMENTWISE,
        reads=(side,),
        writes=(Tensor(name=source, size=size),),
        passes_grad=True,
        traffic=2 * size,
    )
    normed = Op(
        name=f"self_attention.{side[0]}_layernorm",
        kind=OpClass.NORM,
        reads=(source,),
        writes=(Tensor(name=f"{side}_normed", size=size),),
        saves=(source,),
        keeps=norm_statistics(model, f"{side}_norm", shape.tokens * heads),
        weight_bytes=norm_weight(model, shape.head_dim, shape.act),
        traffic=2 * size,
    )
    return (copy, normed) if is_view else (normed,)


def _rope(model: ModelConfig, shape: Shape, side: str, source: str, size: int) -> Op:
    """Rotary embedding. Unfused, each application keeps its own cosine and sine table [seq, d].

    Source: NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/models/common/embeddings/rope_utils.py _apply_rotary_pos_emb_bshd. The fused kernel
    keeps the FP32 angles, one tensor for the whole model.
    """
    table = shape.seq * shape.head_dim * shape.act
    keeps = tuple(Tensor(name=f"rope.{side}.{part}", size=table) for part in ("cos", "sin"))
    return Op(
        name=f"self_attention.rope_{side}",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=f"{side}_rotated", size=size),),
        keeps=() if model.apply_rope_fusion else keeps,
        forward_workspace=0 if model.apply_rope_fusion else 2 * size,
        backward_workspace=0 if model.apply_rope_fusion else 2 * size,
        traffic=2 * size if model.apply_rope_fusion else 8 * size,
    )


def _core(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    query = "query_rotated" if _rotates(model) else _normed(model, "query")
    key = "key_rotated" if _rotates(model) else _normed(model, "key")
    return (
        (*_unfused_core(model, shape, query, key),)
        if is_unfused(model)
        else _fused_core(model, shape, query, key)
    )


def _rotates(model: ModelConfig) -> bool:
    return model.position_embedding_type in ("rope", "yarn", "mrope")


def _normed(model: ModelConfig, side: str) -> str:
    return f"{side}_normed" if model.qk_layernorm else side


def _fused_core(model: ModelConfig, shape: Shape, query: str, key: str) -> tuple[Op, ...]:
    """Views of the mixed projection are made contiguous first unless all three lie interleaved in it.

    So a kept value does not hold the projection (TransformerEngine v2.20
    transformer_engine/pytorch/attention/dot_product_attention/utils.py get_qkv_layout).
    """
    unit = shape.tokens * shape.head_dim * shape.act
    size_q, size_k = unit * shape.heads, unit * shape.groups
    interleaved = query == "query" and shape.heads == shape.groups
    contiguous = Op(
        name="self_attention.core_attention.inputs",
        kind=OpClass.ELEMENTWISE,
        reads=(query, key, "value"),
        writes=(
            Tensor(name="attn_q", size=size_q, storage=_storage(query, interleaved)),
            Tensor(name="attn_k", size=size_k, storage=_storage(key, interleaved)),
            Tensor(name="attn_v", size=size_k, storage="mixed_qkv" if interleaved else ""),
        ),
        passes_grad=True,
        traffic=0 if interleaved else 2 * size_k,
    )
    widths = HeadWidths(
        query=shape.head_dim, value=shape.head_dim, key_heads=shape.groups, window=model.window_size
    )
    return contiguous, fused_attention(model, shape, widths)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWidths:
    """Channels of one attention head."""

    query: int
    """Channels of a query or key."""
    value: int
    key_heads: int
    window: tuple[int, int] | None = None


def fused_attention(model: ModelConfig, shape: Shape, widths: HeadWidths) -> Op:
    """Flash or cuDNN attention over ``attn_q``, ``attn_k`` and ``attn_v``.

    Keeps them, its output and one FP32 statistic a head and token (TransformerEngine v2.20
    transformer_engine/pytorch/attention/dot_product_attention/backends.py FusedAttnFunc).
    """
    unit, statistics = shape.tokens * shape.act, shape.tokens * shape.heads * 4
    size_q, size_out = unit * shape.heads * widths.query, unit * shape.heads * widths.value
    size_kv = unit * widths.key_heads * (widths.query + widths.value)
    op = Op(
        name="self_attention.core_attention",
        kind=OpClass.ATTENTION,
        reads=("attn_q", "attn_k", "attn_v"),
        writes=(Tensor(name="core_attn_out", size=size_out),),
        saves=("attn_q", "attn_k", "attn_v", "core_attn_out"),
        keeps=(
            Tensor(name="attention.statistics", size=statistics),
            Tensor(name="attention.rng", size=RNG_STATE),
        ),
        backward_workspace=2 * statistics,
        flops=attention_flops(shape, widths),
        traffic=size_q + size_out + size_kv,
    )
    return over_context(op, shape, exchange_of(model), (size_q, size_kv, size_out))


def _storage(name: str, interleaved: bool) -> str:
    if interleaved:
        return "mixed_qkv"
    return "" if name == "key" else name


def attention_flops(shape: Shape, widths: HeadWidths) -> int:
    """Two GEMMs over half of the causal square, or over the window."""
    context = shape.seq * shape.cp
    if widths.window is not None and 0 <= widths.window[0] < context:
        span = widths.window[0] + 1
    else:
        span = context // 2
    return 2 * shape.tokens * span * shape.heads * (widths.query + widths.value)


def _context_comm(shape: Shape, kv_bytes: int) -> tuple[tuple[Link, int], ...]:
    """Keys and values travel once round the context group."""
    if shape.cp == 1:
        return ()
    return ((Link.CONTEXT, kv_bytes * (shape.cp - 1)),)


def _unfused_core(model: ModelConfig, shape: Shape, query: str, key: str) -> tuple[Op, ...]:
    """Keys and values of grouped heads are repeated to all heads, then attention unfused."""
    size = shape.tokens * shape.head_dim * shape.act * shape.heads
    inputs = Op(
        name="self_attention.core_attention.inputs",
        kind=OpClass.ELEMENTWISE,
        reads=(query, key, "value"),
        writes=(
            Tensor(name="attn_q", size=size, storage=_base(query)),
            Tensor(name="attn_k", size=size, storage=_expanded(shape, key)),
            Tensor(name="attn_v", size=size, storage=_expanded(shape, "value")),
        ),
        passes_grad=shape.heads == shape.groups,
        traffic=0 if shape.heads == shape.groups else 2 * size,
    )
    widths = HeadWidths(query=shape.head_dim, value=shape.head_dim, key_heads=shape.heads)
    return inputs, *unfused_attention(model, shape, widths)


def unfused_attention(model: ModelConfig, shape: Shape, widths: HeadWidths) -> tuple[Op, ...]:
    """Scores, softmax, dropout and weighted sum, each a tensor of [batch * heads, seq, seq].

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/dot_product_attention.py
    DotProductAttention.forward; the softmax keeps its output, dropout its mask (one byte), the second
    product its left factor.
    """
    elements = shape.batch * shape.heads * shape.seq * shape.seq * shape.cp
    scores, unit = elements * shape.act, shape.tokens * shape.act * shape.heads
    dropout = model.attention_dropout > 0
    product = Op(
        name="self_attention.core_attention.scores",
        kind=OpClass.ATTENTION,
        reads=("attn_q", "attn_k"),
        writes=(Tensor(name="scores", size=scores),),
        saves=("attn_q", "attn_k"),
        flops=2 * elements * widths.query,
        traffic=scores + 2 * unit * widths.query,
    )
    drop = Op(
        name="self_attention.core_attention.dropout",
        kind=OpClass.ELEMENTWISE,
        reads=("probs",),
        writes=(Tensor(name="dropped", size=scores),),
        keeps=(Tensor(name="attention.mask", size=elements),),
        traffic=2 * scores + elements,
    )
    left = "dropped" if dropout else "probs"
    context = Op(
        name="self_attention.core_attention",
        kind=OpClass.ATTENTION,
        reads=(left, "attn_v"),
        writes=(Tensor(name="core_attn_out", size=unit * widths.value),),
        saves=(left, "attn_v"),
        flops=2 * elements * widths.value,
        traffic=scores + 2 * unit * widths.value,
        comm=_context_comm(shape, unit * (widths.query + widths.value)),
    )
    return (product, _softmax(model, shape, elements), *((drop,) if dropout else ()), context)


def _softmax(model: ModelConfig, shape: Shape, elements: int) -> Op:
    """Softmax of the scores, in FP32 and cast back when no kernel fuses it."""
    scores = elements * shape.act
    fp32 = model.attention_softmax_in_fp32 and shape.act < 4 and not _fuses_softmax(model, shape)
    return Op(
        name="self_attention.core_attention.softmax",
        kind=OpClass.ELEMENTWISE,
        reads=("scores",),
        writes=(Tensor(name="probs", size=scores),),
        saves=() if fp32 else ("probs",),
        keeps=(Tensor(name="softmax.fp32", size=elements * 4),) if fp32 else (),
        forward_workspace=elements * 4 if fp32 else 0,
        backward_workspace=elements * 4 * 2 if fp32 else 0,
        traffic=scores * (6 if fp32 else 2),
    )


def _fuses_softmax(model: ModelConfig, shape: Shape) -> bool:
    """Say whether one kernel scales, masks and normalises the scores.

    Megatron's own asks ``masked_softmax_fusion``, Transformer Engine's the sizes alone
    (TransformerEngine v2.20 transformer_engine/pytorch/attention/dot_product_attention/softmax.py
    FusedScaleMaskSoftmax.is_kernel_available).
    """
    if model.transformer_impl == "local":
        return model.masked_softmax_fusion
    fits = 16 < shape.seq < 16384 and shape.seq % 8 == 0
    return fits and shape.batch * shape.heads % 4 == 0


def _base(name: str) -> str:
    return "mixed_qkv" if name == "query" else name


def _expanded(shape: Shape, name: str) -> str:
    """Keys and values of grouped heads are repeated to all heads (a new tensor)."""
    if shape.heads != shape.groups:
        return ""
    return "mixed_qkv" if name in ("key", "value") else name
