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
from recompute.model.ops import mla
from recompute.model.ops.attention import core_attention_region
from recompute.model.ops.linear import column_linear, norm, row_linear
from recompute.model.ops.sparse import sparse_core
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Op, OpClass, Region, Tensor

NORMED = mla.NORMED


def absorbed_attention(
    model: ModelConfig, shape: Shape, source: str, target: str
) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H]."""
    plain = replace(model, qk_layernorm=False, mla_down_proj_fusion=False)
    query, key = _latents(model)
    return (
        norm("input_layernorm", source, NORMED, model=model, shape=shape),
        *mla.down_projections(plain, shape),
        *_norms(model, shape),
        *_up(model, shape, query, key),
        *sparse_core(model, shape, NORMED, query),
        row_linear(
            "self_attention.linear_proj",
            "core_attn_out",
            target,
            shape=shape,
            width=shape.heads * model.v_head_dim,
            bias=False,
        ),
    )


def absorbed_regions(model: ModelConfig) -> tuple[Region, ...]:
    """Labels inside: ``core_attn`` with the indexer and the value's projection, ``mla_up_proj``, ``layernorm``.

    ``mla_up_proj`` frees query and key once core attention has run, and restores them before its
    backward.
    """
    first = "linear_q_proj" if model.q_lora_rank is None else "linear_q_up_proj"
    return (
        core_attention_region(),
        Region(
            label="mla_up_proj",
            mechanism=Mechanism.DISCARD,
            first=f"self_attention.{first}",
            last="self_attention.key_cat",
            hook="self_attention.core_attention",
        ),
        Region(
            label="layernorm",
            mechanism=Mechanism.DISCARD,
            first="input_layernorm",
            last="input_layernorm",
            hook="self_attention.linear_proj",
            originals=("self_attention.linear_q_down_proj", "self_attention.linear_kv_down_proj"),
        ),
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
        ops.append(_norm(model, shape, "q", "q_compressed", model.q_lora_rank))
    source = "kv_compressed"
    if not shape.local:
        size = shape.stream_tokens * model.kv_lora_rank * shape.act
        name = "self_attention.kv_layernorm.input"
        ops.append(mla.copy_of(name, source, f"{source}.contiguous", size))
        source = f"{source}.contiguous"
    ops.append(_norm(model, shape, "kv", source, model.kv_lora_rank))
    return tuple(ops)


def _norm(model: ModelConfig, shape: Shape, side: str, source: str, width: int) -> Op:
    name, target = f"self_attention.{side}_layernorm", f"{side}_compressed.normed"
    return norm(name, source, target, model=model, shape=shape, width=width)


def _up(model: ModelConfig, shape: Shape, query: str, key: str) -> tuple[Op, ...]:
    """Query [T, n, L + r] and key [T, L + r], RoPE on their last channels."""
    heads, position = shape.heads, model.qk_pos_emb_head_dim
    unit = shape.tokens * shape.act
    name = "linear_q_proj" if model.q_lora_rank is None else "linear_q_up_proj"
    gathered: tuple[Op, ...] = ()
    if shape.sequence_parallel and shape.tp > 1:
        size = unit * model.kv_lora_rank
        gathered = (mla.gather(f"self_attention.{key}", key, "kv_latent", size, shape),)
        key = "kv_latent"
    return (
        *gathered,
        column_linear(
            f"self_attention.{name}",
            query,
            "q",
            shape=shape,
            width=heads * (model.qk_head_dim + position),
            bias=False,
            inputs=model.q_lora_rank or shape.hidden,
        ),
        mla.views_of(
            "split_query",
            "q",
            (
                ("q_no_pe", unit * heads * model.qk_head_dim),
                ("q_pos_emb", unit * heads * position),
            ),
        ),
        _absorb(model, shape),
        mla.rotation(model, shape, "query", "q_pos_emb", unit * heads * position),
        mla.rotation(model, shape, "key", "k_pos_emb", unit * position),
        mla.concatenation("query", "q_absorbed", unit * heads * (model.kv_lora_rank + position)),
        mla.concatenation("key", key, unit * (model.kv_lora_rank + position)),
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
