"""Multi-latent attention: queries, keys and values expanded from low-rank latents.

T tokens before sequence parallelism, S after it, n heads on this rank, d the ``qk_head_dim``, r the
``qk_pos_emb_head_dim``, v the ``v_head_dim``, L the latent ranks.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/multi_latent_attention.py
MLASelfAttention and FusedMLASelfAttention, layer specs in
megatron/core/models/gpt/gpt_layer_specs.py, norm placement in
megatron/core/transformer/mla_qk_norm_config.py.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.attention import (
    HeadWidths,
    fused_attention,
    is_unfused,
    unfused_attention,
)
from recompute.model.ops.linear import (
    column_linear,
    duplicated_linear,
    norm,
    row_linear,
)
from recompute.model.shape import Shape
from recompute.model.tape import Link, Mechanism, Op, OpClass, Region, Tensor

NORMED = "input_layernorm.output"
UP = "self_attention.linear_"


def mla_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H]."""
    return (
        norm("input_layernorm", source, NORMED, model=model, shape=shape),
        *down_projections(model, shape),
        *_query(model, shape),
        *_key_value(model, shape),
        *_position(model, shape),
        *_core(model, shape),
        row_linear(
            "self_attention.linear_proj",
            "core_attn_out",
            target,
            shape=shape,
            width=shape.heads * model.v_head_dim,
            bias=model.add_bias_linear,
        ),
    )


def mla_regions(model: ModelConfig, shape: Shape) -> tuple[Region, ...]:
    """Labels inside MLA: ``mla_up_proj`` and ``layernorm`` on the input norm.

    The up projections, RoPE and the copies behind it run again before core attention's backward. With
    ``mla_down_proj_fusion`` the input norm is fused into the down projection and the ``layernorm``
    label finds none.
    """
    first = "linear_q_proj" if model.q_lora_rank is None else "linear_q_up_proj"
    up = Region(
        label="mla_up_proj",
        mechanism=Mechanism.DISCARD,
        first=_first_of_up(model, shape, f"self_attention.{first}"),
        last="self_attention.values",
        hook="self_attention.core_attention",
    )
    if _fuses_down(model):
        return (up,)
    return (
        up,
        Region(
            label="layernorm",
            mechanism=Mechanism.DISCARD,
            first="input_layernorm",
            last="input_layernorm",
            hook="self_attention.linear_proj",
            originals=(f"{UP}q_down_proj", f"{UP}kv_down_proj"),
        ),
    )


def _is_te(model: ModelConfig) -> bool:
    return model.transformer_impl != "local"


def _fuses_down(model: ModelConfig) -> bool:
    return model.mla_down_proj_fusion and _is_te(model) and model.q_lora_rank is not None


def _first_of_up(model: ModelConfig, shape: Shape, linear: str) -> str:
    """Name the first operation of the up projection: a copy of the latent or a fused norm before it."""
    if _fuses_down(model):
        return f"{linear}.input"
    source = NORMED if model.q_lora_rank is None else "q_compressed"
    return f"{linear}.layer_norm" if _norm_in_up(model, shape, source) else linear


# --- latents


def down_projections(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Down projections to the latents of query [S, Lq] and key-value [S, Lkv + r]."""
    latent = model.kv_lora_rank + model.qk_pos_emb_head_dim
    if _fuses_down(model):
        return (*_fused_down(model, shape, latent), *_split_latent(shape, model, "kv_combined"))
    ops: list[Op] = []
    if model.q_lora_rank is not None:
        ops += _down_linear(
            model, shape, "linear_q_down_proj", "q_compressed", model.q_lora_rank, scatters=True
        )
    ops += _down_linear(model, shape, "linear_kv_down_proj", "kv_combined", latent, scatters=False)
    ops += _split_latent(shape, model, ops[-1].writes[0].name)
    if model.qk_layernorm and not _is_te(model):
        ops += _local_norms(model, shape)
    return tuple(ops)


def _down_linear(
    model: ModelConfig, shape: Shape, name: str, target: str, width: int, *, scatters: bool
) -> tuple[Op, ...]:
    """One down projection: whole on each rank with Transformer Engine, sharded and gathered without."""
    path = f"self_attention.{name}"
    if _is_te(model) or shape.tp == 1:
        return (
            duplicated_linear(path, NORMED, target, shape=shape, inputs=shape.hidden, width=width),
        )
    part = column_linear(
        path,
        NORMED,
        f"{target}.shard",
        shape=shape,
        width=width // shape.tp,
        bias=False,
    )
    gathered = f"{target}.gathered" if scatters and shape.sequence_parallel else target
    whole = gather(path, f"{target}.shard", gathered, shape.tokens * width * shape.act, shape)
    if gathered == target:
        return part, whole
    return (
        part,
        whole,
        copy_of(f"{path}.scatter", gathered, target, shape.stream_tokens * width * shape.act),
    )


def _fused_down(model: ModelConfig, shape: Shape, latent: int) -> tuple[Op, ...]:
    """One projection to both latents with the input norm fused in; the latents are views of it."""
    query = model.q_lora_rank or 0
    down = column_linear(
        f"{UP}qkv_down_proj",
        NORMED,
        "qkv_latent",
        shape=shape,
        width=(query + latent) // shape.tp,
        bias=False,
    )
    size_q, size_kv = (shape.tokens * w // shape.tp * shape.act for w in (query, latent))
    split = Op(
        name=f"{UP}qkv_down_proj.split",
        kind=OpClass.ELEMENTWISE,
        reads=("qkv_latent",),
        writes=(
            Tensor(name="q_latent", size=size_q, storage="qkv_latent"),
            Tensor(name="kv_latent", size=size_kv, storage="qkv_latent"),
        ),
    )
    if shape.tp == 1:
        split = replace(
            split,
            writes=(
                replace(split.writes[0], name="q_compressed"),
                replace(split.writes[1], name="kv_combined"),
            ),
        )
        return down, split
    return down, split, *_gathered_latents(shape, query, latent)


def _gathered_latents(shape: Shape, query: int, latent: int) -> tuple[Op, ...]:
    unit = shape.tokens * shape.act
    name = f"{UP}qkv_down_proj"
    first = "q_gathered" if shape.sequence_parallel else "q_compressed"
    ops = [gather(f"{name}.q", "q_latent", first, unit * query, shape)]
    if shape.sequence_parallel:
        size = shape.stream_tokens * query * shape.act
        ops.append(copy_of(f"{name}.scatter", "q_gathered", "q_compressed", size))
    ops.append(gather(f"{name}.kv", "kv_latent", "kv_combined", unit * latent, shape))
    return tuple(ops)


def _split_latent(shape: Shape, model: ModelConfig, combined: str) -> tuple[Op, ...]:
    """Views of the combined latent; under sequence parallelism one of the two changes its shard."""
    parallel = shape.sequence_parallel and shape.tp > 1
    whole = parallel and (not _is_te(model) or _fuses_down(model))
    tokens = shape.tokens if whole or not parallel else shape.stream_tokens
    latent = tokens * model.kv_lora_rank * shape.act
    position = tokens * model.qk_pos_emb_head_dim * shape.act
    names = ("kv_compressed.whole", "k_pos_emb") if whole else ("kv_compressed", "k_pos_emb.shard")
    if not parallel:
        names = ("kv_compressed", "k_pos_emb")
    split = Op(
        name="self_attention.split_latent",
        kind=OpClass.ELEMENTWISE,
        reads=(combined,),
        writes=(
            Tensor(name=names[0], size=latent, storage=combined),
            Tensor(name=names[1], size=position, storage=combined),
        ),
    )
    if not parallel:
        return (split,)
    if whole:
        size = shape.stream_tokens * model.kv_lora_rank * shape.act
        return split, copy_of("self_attention.scatter_latent", names[0], "kv_compressed", size)
    size = shape.tokens * model.qk_pos_emb_head_dim * shape.act
    return split, gather("self_attention.k_pos_emb", names[1], "k_pos_emb", size, shape)


def _local_norms(model: ModelConfig, shape: Shape) -> list[Op]:
    """Norms of the latents as modules of their own."""
    ops = []
    widths = {"q": model.q_lora_rank, "kv": model.kv_lora_rank}
    for side, width in widths.items():
        if width is not None:
            name, latent = f"self_attention.{side}_layernorm", f"{side}_compressed"
            ops.append(
                norm(name, latent, f"{latent}.normed", model=model, shape=shape, width=width)
            )
    return ops


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
    is_view = source == "kv_compressed" or (source == "q_compressed" and _fuses_down(model))
    if _is_te(model) and is_view:
        size = shape.stream_tokens * inputs * shape.act
        ops.append(copy_of(f"{path}.input", source, f"{source}.contiguous", size))
        source = f"{source}.contiguous"
    if _norm_in_up(model, shape, source):
        normed = f"{target}.normed"
        ops.append(
            norm(f"{path}.layer_norm", source, normed, model=model, shape=shape, width=inputs)
        )
        source = normed
    elif model.qk_layernorm and not _is_te(model) and source != NORMED:
        source = f"{source}.normed"
    ops.append(
        column_linear(path, source, target, shape=shape, width=width, bias=False, inputs=inputs)
    )
    return tuple(ops)


def _norm_in_up(model: ModelConfig, shape: Shape, source: str) -> bool:
    """Say whether an up projection fuses a norm: of its latent, or of the whole query's input."""
    fused = model.qk_layernorm and _is_te(model)
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


def views_of(name: str, source: str, parts: tuple[tuple[str, int], ...]) -> Op:
    """Split a tensor into views, each with its size in bytes."""
    return Op(
        name=f"self_attention.{name}",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=tuple(Tensor(name=part, size=size, storage=source) for part, size in parts),
    )


def rotation(model: ModelConfig, shape: Shape, side: str, source: str, size: int) -> Op:
    """Interleaved RoPE: copies even and odd channels apart, keeps its own cosines and sines [seq, r].

    Source: NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/models/common/embeddings/rope_utils.py _apply_rotary_pos_emb_bshd.
    """
    table = shape.seq * model.qk_pos_emb_head_dim * shape.act
    return Op(
        name=f"self_attention.rope_{side}",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=f"{side}_rotated", size=size),),
        keeps=tuple(Tensor(name=f"rope.{side}.{part}", size=table) for part in ("cos", "sin")),
        forward_workspace=3 * size,
        backward_workspace=3 * size,
        traffic=10 * size,
    )


def concatenation(side: str, plain: str, size: int) -> Op:
    """Channels without and with position, one tensor; its gradient is handed on as two views."""
    return Op(
        name=f"self_attention.{side}_cat",
        kind=OpClass.ELEMENTWISE,
        reads=(plain, f"{side}_rotated"),
        writes=(Tensor(name=side, size=size),),
        passes_grad=True,
        traffic=2 * size,
    )


def copy_of(name: str, source: str, target: str, size: int) -> Op:
    """A copy of a view; its gradient is handed on."""
    return Op(
        name=name,
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        passes_grad=True,
        traffic=2 * size,
    )


def gather(name: str, source: str, target: str, size: int, shape: Shape) -> Op:
    """An all-gather over the tensor group; ``size`` is that of the whole."""
    return Op(
        name=f"{name}.gather",
        kind=OpClass.COMM,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        comm=((Link.TENSOR, size * (shape.tp - 1) // shape.tp),),
        traffic=2 * size,
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
