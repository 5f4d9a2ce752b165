"""One depth of multi-token prediction: its embedding, projection, inner layer, logits and loss.

T tokens of one micro-batch before sequence parallelism, S after it, H hidden, V vocabulary, all on
this rank. Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/multi_token_prediction.py
MultiTokenPredictionLayer._concat_embeddings, _postprocess, MultiTokenPredictionBlock.forward and
process_mtp_loss. Word embedding and output layer are those of the model; an MTP depth owns neither.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.ends import embedding_tape, loss_op
from recompute.model.ops.linear import column_linear, norm
from recompute.model.shape import Shape
from recompute.model.tape import Link, Mechanism, Op, OpClass, Region, Tape, Tensor

PREFIX = "mtp"


def mtp_tape(model: ModelConfig, shape: Shape, inner: Tape) -> Tape:
    """Wrap an inner transformer layer into one MTP depth.

    Args:
        model: The job's model.
        shape: Sizes on one rank.
        inner: Tape of the inner layer; it reads ``hidden`` and writes ``layer_out``.

    Returns:
        A tape whose input ``hidden`` also leaves it, unchanged, for the head or the next depth.
    """
    stream = shape.stream
    last = norm(f"{PREFIX}.final_layernorm", "layer_out", "mtp_normed", model=model, shape=shape)
    ops = (
        *_entry(model, shape),
        *(_renamed(op) for op in inner.ops),
        last,
        *_exit(model, shape),
    )
    return Tape(
        name=f"{PREFIX}+{inner.name}",
        inputs=(Tensor(name="hidden", size=stream),),
        outputs=("hidden_out", "mtp_loss"),
        ops=ops,
        regions=(*inner.regions, _full_region()),
    )


def _full_region() -> Region:
    """Full recompute of a depth: from its norms to its last one, neither embedding nor logits.

    Source: MultiTokenPredictionLayer._checkpointed_forward around _proj_and_transformer_layer.
    """
    return Region(
        label="full",
        mechanism=Mechanism.CHECKPOINT,
        first=f"{PREFIX}.enorm",
        last=f"{PREFIX}.final_layernorm",
    )


def _renamed(op: Op) -> Op:
    """Let the inner layer read the projection instead of the model's stream."""

    def name(tensor: str) -> str:
        return "mtp_hidden" if tensor == "hidden" else tensor

    return replace(
        op,
        reads=tuple(map(name, op.reads)),
        reads_without_grad=tuple(map(name, op.reads_without_grad)),
        saves=tuple(map(name, op.saves)),
        writes=tuple(replace(t, storage=name(t.storage)) for t in op.writes),
    )


def _entry(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Embed the next tokens, norm both inputs, join them [S, 2 H] and project back to [S, H]."""
    stream = shape.stream
    embedded = embedding_tape(model, shape, owns_weight=False).ops[0]
    embedding = replace(
        embedded,
        name=f"{PREFIX}.embedding",
        writes=(Tensor(name="next_embedding", size=stream),),
        weight_bytes=0,
    )
    normed = (
        norm(f"{PREFIX}.enorm", "next_embedding", "embedding_normed", model=model, shape=shape),
        norm(f"{PREFIX}.hnorm", "hidden", "hidden_normed", model=model, shape=shape),
    )
    joined = Op(
        name=f"{PREFIX}.concat",
        kind=OpClass.ELEMENTWISE,
        reads=("embedding_normed", "hidden_normed"),
        writes=(Tensor(name="joined", size=2 * stream),),
        passes_grad=True,
        traffic=4 * stream,
    )
    return embedding, *normed, joined, *_projection(shape)


def _projection(shape: Shape) -> tuple[Op, ...]:
    """Column-parallel projection; with tensor parallelism gathered and scattered again."""
    part = "mtp_part" if shape.tp > 1 else "mtp_hidden"
    linear = column_linear(
        f"{PREFIX}.eh_proj",
        "joined",
        part,
        shape=shape,
        width=shape.hidden // shape.tp,
        bias=False,
        inputs=2 * shape.hidden,
    )
    if shape.tp == 1:
        return (linear,)
    whole = shape.tokens * shape.hidden * shape.act
    gather = Op(
        name=f"{PREFIX}.gather",
        kind=OpClass.COMM,
        reads=(part,),
        writes=(Tensor(name="mtp_hidden", size=shape.stream),),
        forward_workspace=whole if shape.sequence_parallel else 0,
        comm=((Link.TENSOR, whole * (shape.tp - 1) // shape.tp),),
        traffic=2 * whole,
    )
    return linear, gather


def _exit(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """Join with the model's own stream, take logits of this depth and its loss.

    One tensor holds the streams of all depths and the model's own, and the output layer keeps views of
    it: each depth counts its share.
    """
    stream, depths = shape.stream, model.mtp_num_layers or 1
    streams = -(-stream * (1 + depths) // depths)
    joined = Op(
        name=f"{PREFIX}.join_streams",
        kind=OpClass.ELEMENTWISE,
        reads=("mtp_normed", "hidden"),
        writes=(
            Tensor(name="streams", size=streams),
            Tensor(name="mtp_stream", size=stream, storage="streams"),
            Tensor(name="hidden_out", size=stream, storage="streams"),
        ),
        passes_grad=True,
        traffic=2 * streams,
    )
    logits = column_linear(
        f"{PREFIX}.output_layer",
        "mtp_stream",
        "mtp_logits",
        shape=shape,
        width=shape.vocab,
        bias=False,
        engine=False,
    )
    weight = shape.vocab * shape.hidden * shape.act
    logits = replace(
        logits, weight_bytes=0, backward_workspace=max(logits.backward_workspace, weight)
    )
    loss = loss_op(model, shape)
    loss = replace(
        loss,
        name=f"{PREFIX}.loss",
        reads=("mtp_logits",),
        saves=tuple("mtp_logits" for _ in loss.saves),
        grad_over="mtp_logits" if loss.grad_over == "logits" else loss.grad_over,
        writes=(Tensor(name="mtp_loss", size=loss.writes[0].size),),
    )
    return joined, logits, loss
