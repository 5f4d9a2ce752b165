"""What both forms of multi-latent attention have: the layer's frame, its latents, and moves of tensors.

T tokens before sequence parallelism, S after it, H hidden, L the latent ranks, r the ``qk_pos_emb_head_dim``.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/multi_latent_attention.py
MLASelfAttention and FusedMLASelfAttention, layer specs in
megatron/core/models/gpt/gpt_layer_specs.py.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import column_linear, duplicated_linear, norm, row_linear
from recompute.model.shape import Shape
from recompute.model.tape import Link, Mechanism, Op, OpClass, Region, Tensor

NORMED = "input_layernorm.output"
UP = "self_attention.linear_"


def framed(
    model: ModelConfig, shape: Shape, inner: tuple[Op, ...], *, source: str, target: str
) -> tuple[Op, ...]:
    """Operations from the residual stream [S, H] to the projection's output [S, H].

    Args:
        model: The job's model; the frame has the norms, the fusion and the bias that it says.
        shape: Sizes on one rank.
        inner: From the latents to ``core_attn_out``.
        source: The residual stream that is read.
        target: The output that is written.
    """
    return (
        norm("input_layernorm", source, NORMED, model=model, shape=shape),
        *_down_projections(model, shape),
        *inner,
        row_linear(
            "self_attention.linear_proj",
            "core_attn_out",
            target,
            shape=shape,
            width=shape.heads * model.v_head_dim,
            bias=model.add_bias_linear,
        ),
    )


def up_region(first: str, last: str) -> Region:
    """Label ``mla_up_proj``: frees what core attention reads and restores it before its backward."""
    return Region(
        label="mla_up_proj",
        mechanism=Mechanism.DISCARD,
        first=f"self_attention.{first}",
        last=f"self_attention.{last}",
        hook="self_attention.core_attention",
    )


def input_norm_region() -> Region:
    """Label ``layernorm`` on the input norm, that the down projections keep."""
    return Region(
        label="layernorm",
        mechanism=Mechanism.DISCARD,
        first="input_layernorm",
        last="input_layernorm",
        hook="self_attention.linear_proj",
        originals=(f"{UP}q_down_proj", f"{UP}kv_down_proj"),
    )


def query_linear(model: ModelConfig) -> str:
    """Name the linear that makes the query, from its latent where it has one."""
    return "linear_q_proj" if model.q_lora_rank is None else "linear_q_up_proj"


def is_engine(model: ModelConfig) -> bool:
    """Say whether the layers are Transformer Engine's."""
    return model.transformer_impl != "local"


def fuses_down(model: ModelConfig) -> bool:
    """Say whether one projection with the input norm fused in makes both latents."""
    return model.mla_down_proj_fusion and is_engine(model) and model.q_lora_rank is not None


# --- latents


def _down_projections(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Down projections to the latents of query [S, Lq] and key-value [S, Lkv + r]."""
    latent = model.kv_lora_rank + model.qk_pos_emb_head_dim
    if fuses_down(model):
        return (*_fused_down(model, shape, latent), *_split_latent(shape, model, "kv_combined"))
    ops: list[Op] = []
    if model.q_lora_rank is not None:
        ops += _down_linear(
            model, shape, "linear_q_down_proj", "q_compressed", model.q_lora_rank, scatters=True
        )
    ops += _down_linear(model, shape, "linear_kv_down_proj", "kv_combined", latent, scatters=False)
    ops += _split_latent(shape, model, ops[-1].writes[0].name)
    if model.qk_layernorm and not is_engine(model):
        ops += _local_norms(model, shape)
    return tuple(ops)


def _down_linear(
    model: ModelConfig, shape: Shape, name: str, target: str, width: int, *, scatters: bool
) -> tuple[Op, ...]:
    """One down projection: whole on each rank with Transformer Engine, sharded and gathered without."""
    path = f"self_attention.{name}"
    if is_engine(model) or shape.tp == 1:
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
    whole = parallel and (not is_engine(model) or fuses_down(model))
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
            ops.append(latent_norm(model, shape, side, f"{side}_compressed", width))
    return ops


def latent_norm(model: ModelConfig, shape: Shape, side: str, source: str, width: int) -> Op:
    """A norm of the latent of one side, ``q`` or ``kv``, as a module of its own."""
    name, target = f"self_attention.{side}_layernorm", f"{side}_compressed.normed"
    return norm(name, source, target, model=model, shape=shape, width=width)


# --- moves of tensors


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
