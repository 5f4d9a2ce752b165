"""Absorbed multi-latent attention: the key's up projection acts on the query, the value's on the output.

One key of L + r channels serves all heads. T tokens before sequence parallelism, n heads on this rank,
d the ``qk_head_dim``, r the ``qk_pos_emb_head_dim``, v the ``v_head_dim``, L the ``kv_lora_rank``.
Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/transformer/experimental_attention_variant/absorbed_mla.py AbsorbedMLASelfAttention;
megatron/core/models/gpt/experimental_attention_variant_module_specs.py
get_dsa_module_spec_for_backend, which builds it for sparse attention alone, with norms of their own.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.attention import core_attention_region
from recompute.model.ops.latents import (
    NORMED,
    concatenation,
    copy_of,
    framed,
    gather,
    input_norm_region,
    latent_norm,
    query_linear,
    rotation,
    up_region,
    views_of,
)
from recompute.model.ops.linear import column_linear
from recompute.model.ops.sparse import sparse_core
from recompute.model.shape import Shape
from recompute.model.tape import Op, OpClass, Region, Tensor


def absorbed_attention(
    model: ModelConfig, shape: Shape, source: str, target: str
) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H].

    The down projections know no norms, no fusion and no bias; the module refuses the last.
    """
    query, key = _latents(model)
    inner = (
        *_norms(model, shape),
        *_up(model, shape, query, key),
        *sparse_core(model, shape, NORMED, query),
    )
    plain = replace(model, qk_layernorm=False, mla_down_proj_fusion=False, add_bias_linear=False)
    return framed(plain, shape, inner, source=source, target=target)


def absorbed_regions(model: ModelConfig) -> tuple[Region, ...]:
    """Labels inside: ``core_attn`` with the indexer and the value's projection, ``mla_up_proj``, ``layernorm``.

    ``mla_up_proj`` frees query and key once core attention has run, and restores them before its
    backward.
    """
    return (
        core_attention_region(),
        up_region(query_linear(model), "key_cat"),
        input_norm_region(),
    )


def _latents(model: ModelConfig) -> tuple[str, str]:
    """Name what query and key are made of, behind the norms."""
    suffix = ".normed" if model.qk_layernorm else ""
    query = NORMED if model.q_lora_rank is None else f"q_compressed{suffix}"
    return query, f"kv_compressed{suffix}"


def _norms(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Norms of the latents; Transformer Engine's copies the key-value latent, which is a view."""
    if not model.qk_layernorm:
        return ()
    ops: list[Op] = []
    if model.q_lora_rank is not None:
        ops.append(latent_norm(model, shape, "q", "q_compressed", model.q_lora_rank))
    source = "kv_compressed"
    if not shape.local:
        size = shape.stream_tokens * model.kv_lora_rank * shape.act
        name = "self_attention.kv_layernorm.input"
        ops.append(copy_of(name, source, f"{source}.contiguous", size))
        source = f"{source}.contiguous"
    ops.append(latent_norm(model, shape, "kv", source, model.kv_lora_rank))
    return tuple(ops)


def _up(model: ModelConfig, shape: Shape, query: str, key: str) -> tuple[Op, ...]:
    """Query [T, n, L + r] and key [T, L + r], RoPE on their last channels."""
    heads, position = shape.heads, model.qk_pos_emb_head_dim
    unit = shape.tokens * shape.act
    gathered: tuple[Op, ...] = ()
    if shape.sequence_parallel and shape.tp > 1:
        size = unit * model.kv_lora_rank
        gathered = (gather(f"self_attention.{key}", key, "kv_latent", size, shape),)
        key = "kv_latent"
    return (
        *gathered,
        column_linear(
            f"self_attention.{query_linear(model)}",
            query,
            "q",
            shape=shape,
            width=heads * (model.qk_head_dim + position),
            bias=False,
            inputs=model.q_lora_rank or shape.hidden,
        ),
        views_of(
            "split_query",
            "q",
            (
                ("q_no_pe", unit * heads * model.qk_head_dim),
                ("q_pos_emb", unit * heads * position),
            ),
        ),
        _absorb(model, shape),
        rotation(model, shape, "query", "q_pos_emb", unit * heads * position),
        rotation(model, shape, "key", "k_pos_emb", unit * position),
        concatenation("query", "q_absorbed", unit * heads * (model.kv_lora_rank + position)),
        concatenation("key", key, unit * (model.kv_lora_rank + position)),
    )


def _absorb(model: ModelConfig, shape: Shape) -> Op:
    """The key half of the up projection, applied to the query; the module owns both halves.

    Keeps the query without position, a view that holds all of ``q``. Its weight's gradient is written
    out whole for either half, outside any fused accumulation.
    """
    latent, heads = model.kv_lora_rank, shape.heads
    size = shape.tokens * heads * latent * shape.act
    width = heads * (model.qk_head_dim + model.v_head_dim)
    weight = latent * width * shape.act
    return Op(
        name="self_attention.linear_kv_up_proj",
        kind=OpClass.GEMM,
        reads=("q_no_pe",),
        writes=(Tensor(name="q_absorbed", size=size),),
        saves=("q_no_pe",),
        weight_bytes=weight,
        widths=(latent, width),
        forward_workspace=size,
        backward_workspace=size + 2 * weight,
        flops=2 * shape.tokens * heads * model.qk_head_dim * latent,
        traffic=4 * size,
    )
