"""Multi-latent attention: queries, keys and values expanded from low-rank latents.

T tokens before sequence parallelism, S after it, n heads on this rank, d the ``qk_head_dim``, r the
``qk_pos_emb_head_dim``, v the ``v_head_dim``. The frame around it is :mod:`recompute.model.ops.latents`.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/multi_latent_attention.py
MLASelfAttention and FusedMLASelfAttention, norm placement in
megatron/core/transformer/mla_qk_norm_config.py.
"""

from __future__ import annotations

from recompute.config.schema import ModelConfig
from recompute.model.ops.attention import (
    HeadWidths,
    fused_attention,
    is_unfused,
    unfused_attention,
)
from recompute.model.ops.latents import (
    NORMED,
    concatenation,
    copy_of,
    framed,
    fuses_down,
    input_norm_region,
    is_engine,
    query_linear,
    rotation,
    up_region,
    views_of,
)
from recompute.model.ops.linear import column_linear, norm
from recompute.model.shape import Shape
from recompute.model.tape import Op, OpClass, Region, Tensor


def mla_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H]."""
    inner = (
        *_query(model, shape),
        *_key_value(model, shape),
        *_position(model, shape),
        *_core(model, shape),
    )
    return framed(model, shape, inner, source=source, target=target)


def mla_regions(model: ModelConfig, shape: Shape) -> tuple[Region, ...]:
    """Labels inside MLA: ``mla_up_proj`` and ``layernorm`` on the input norm.

    The up projections, RoPE and the copies behind it run again before core attention's backward. With
    ``mla_down_proj_fusion`` the input norm is fused into the down projection and the ``layernorm``
    label finds none.
    """
    up = up_region(_first_of_up(model, shape), "values")
    return (up,) if fuses_down(model) else (up, input_norm_region())


def _first_of_up(model: ModelConfig, shape: Shape) -> str:
    """Name the first operation of the up projection: a copy of the latent or a fused norm before it."""
    linear = query_linear(model)
    if fuses_down(model):
        return f"{linear}.input"
    source = NORMED if model.q_lora_rank is None else "q_compressed"
    return f"{linear}.layer_norm" if _norm_in_up(model, shape, source) else linear


# --- expansion


def _query(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Query [T, n (d + r)] from its latent, or from the normed stream without compression."""
    width = shape.heads * (model.qk_head_dim + model.qk_pos_emb_head_dim)
    if model.q_lora_rank is None:
        return _up(model, shape, "linear_q_proj", (NORMED, "q"), (shape.hidden, width))
    widths = (model.q_lora_rank, width)
    return _up(model, shape, "linear_q_up_proj", ("q_compressed", "q"), widths)


def _key_value(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Keys without position and values [T, n (d + v)] from their latent."""
    width = shape.heads * (model.qk_head_dim + model.v_head_dim)
    widths = (model.kv_lora_rank, width)
    return _up(model, shape, "linear_kv_up_proj", ("kv_compressed", "kv"), widths)


def _up(
    model: ModelConfig, shape: Shape, name: str, names: tuple[str, str], widths: tuple[int, int]
) -> tuple[Op, ...]:
    """An up projection. Transformer Engine copies a latent that is a view and fuses its norm."""
    path, (source, target), (inputs, width) = f"self_attention.{name}", names, widths
    ops: list[Op] = []
    is_view = source == "kv_compressed" or (source == "q_compressed" and fuses_down(model))
    if is_engine(model) and is_view:
        size = shape.stream_tokens * inputs * shape.act
        ops.append(copy_of(f"{path}.input", source, f"{source}.contiguous", size))
        source = f"{source}.contiguous"
    if _norm_in_up(model, shape, source):
        normed = f"{target}.normed"
        ops.append(
            norm(f"{path}.layer_norm", source, normed, model=model, shape=shape, width=inputs)
        )
        source = normed
    elif model.qk_layernorm and not is_engine(model) and source != NORMED:
        source = f"{source}.normed"
    ops.append(
        column_linear(path, source, target, shape=shape, width=width, bias=False, inputs=inputs)
    )
    return tuple(ops)


def _norm_in_up(model: ModelConfig, shape: Shape, source: str) -> bool:
    """Say whether an up projection fuses a norm: of its latent, or of the whole query's input."""
    fused = model.qk_layernorm and is_engine(model)
    return fused and (source != NORMED or shape.norms_whole_query)


# --- position


def _position(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """RoPE on the position channels, then query, key [T, n, d + r] and value [T, n, v]."""
    return (
        _fused_position(model, shape) if model.apply_rope_fusion else _plain_position(model, shape)
    )


def _fused_position(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """One kernel rotates the query where it lies, another writes key and value.

    Both keep the cached cosines and sines of the whole model
    (megatron/core/fusions/fused_mla_yarn_rope_apply.py).
    """
    unit = shape.tokens * shape.heads * shape.act
    width = model.qk_head_dim + model.qk_pos_emb_head_dim
    query = Op(
        name="self_attention.rope_query",
        kind=OpClass.ELEMENTWISE,
        reads=("q",),
        writes=(Tensor(name="query", size=unit * width, storage="q"),),
        passes_grad=True,
        traffic=2 * unit * model.qk_pos_emb_head_dim,
    )
    values = Op(
        name="self_attention.values",
        kind=OpClass.ELEMENTWISE,
        reads=("kv", "k_pos_emb"),
        writes=(
            Tensor(name="key", size=unit * width),
            Tensor(name="value", size=unit * model.v_head_dim),
        ),
        traffic=2 * unit * (width + model.v_head_dim),
    )
    return query, values


def _plain_position(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    unit = shape.tokens * shape.heads * shape.act
    plain, rotated = unit * model.qk_head_dim, unit * model.qk_pos_emb_head_dim
    value = unit * model.v_head_dim
    split_q = views_of("split_query", "q", (("q_no_pe", plain), ("q_pos_emb", rotated)))
    split_kv = views_of("split_key_value", "kv", (("k_no_pe", plain), ("value_view", value)))
    shared = shape.tokens * model.qk_pos_emb_head_dim * shape.act
    return (
        split_q,
        split_kv,
        rotation(model, shape, "query", "q_pos_emb", rotated),
        rotation(model, shape, "key", "k_pos_emb", shared),
        concatenation("query", "q_no_pe", plain + rotated),
        concatenation("key", "k_no_pe", plain + rotated),
        copy_of("self_attention.values", "value_view", "value", value),
    )


# --- core attention


def _core(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Core attention over query and key [T, n, d + r] and value [T, n, v], all contiguous."""
    unit = shape.tokens * shape.heads * shape.act
    width = model.qk_head_dim + model.qk_pos_emb_head_dim
    inputs = Op(
        name="self_attention.core_attention.inputs",
        kind=OpClass.ELEMENTWISE,
        reads=("query", "key", "value"),
        writes=(
            Tensor(
                name="attn_q",
                size=unit * width,
                storage="q" if model.apply_rope_fusion else "query",
            ),
            Tensor(name="attn_k", size=unit * width, storage="key"),
            Tensor(name="attn_v", size=unit * model.v_head_dim, storage="value"),
        ),
        passes_grad=True,
    )
    widths = HeadWidths(query=width, value=model.v_head_dim, key_heads=shape.heads)
    if is_unfused(model):
        return inputs, *unfused_attention(model, shape, widths)
    return inputs, fused_attention(model, shape, widths)
