"""The two ends of a model: embedding before the first layer, norm, logits and loss after the last.

T tokens before sequence parallelism, S after it, H hidden, V padded vocabulary on this rank.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import column_linear, norm
from recompute.model.shape import DTYPE_BYTES, Shape
from recompute.model.tape import Link, Op, OpClass, Tape, Tensor

INDEX_BYTES = 8
"""Token ids are int64."""


def embedding_tape(model: ModelConfig, shape: Shape, *, owns_weight: bool) -> Tape:
    """Word (and learned position) embedding, its reduction over the tensor group, and dropout.

    Args:
        model: The job's model.
        shape: Sizes on one rank.
        owns_weight: False when the output layer's weight is the same tensor on this rank; its
            gradient is then computed into a temporary and added.

    Source: NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/models/common/embeddings/language_model_embedding.py.
    """
    full = shape.tokens * shape.hidden * shape.act
    weight = shape.vocab * shape.hidden * shape.act
    learned = model.position_embedding_type == "learned_absolute"
    positions = (model.seq_length or 0) * shape.hidden * shape.act if learned else 0
    dropout = model.hidden_dropout > 0
    keeps = [Tensor(name="embedding.indices", size=shape.tokens * INDEX_BYTES)]
    if shape.tp > 1:
        keeps.append(Tensor(name="embedding.out_of_range", size=shape.tokens))
    if dropout:
        keeps.append(Tensor(name="embedding.mask", size=shape.stream_tokens * shape.hidden))
    op = Op(
        name="embedding.word_embeddings",
        kind=OpClass.ELEMENTWISE,
        writes=(Tensor(name="hidden", size=shape.stream),),
        keeps=tuple(keeps),
        weight_bytes=(weight if owns_weight else 0) + positions,
        forward_workspace=full,
        backward_workspace=(full if shape.tp > 1 else 0) + (0 if owns_weight else weight),
        traffic=2 * full,
        comm=((Link.TENSOR, full),) if shape.tp > 1 else (),
    )
    return Tape(name="embedding", inputs=(), outputs=("hidden",), ops=(op,))


def head_tape(model: ModelConfig, shape: Shape, *, owns_weight: bool) -> Tape:
    """Final norm, output layer and loss.

    Args:
        model: The job's model.
        shape: Sizes on one rank.
        owns_weight: False when the weight's gradient belongs to the embedding of this rank.
    """
    hidden = Tensor(name="hidden", size=shape.stream)
    final = norm("decoder.final_layernorm", "hidden", "normed", model=model, shape=shape)
    logits = column_linear(
        "output_layer", "normed", "logits", shape=shape, width=shape.vocab, bias=False
    )
    if not owns_weight:
        logits = replace(logits, weight_bytes=0)
    return Tape(
        name="head", inputs=(hidden,), outputs=("loss",), ops=(final, logits, loss_op(model, shape))
    )


def loss_op(model: ModelConfig, shape: Shape) -> Op:
    """Vocabulary-parallel cross entropy over logits [T, V].

    ``native``, fused or not: the logits are copied to FP32 and exponentiated in place; that copy is
    kept, and backward turns it into the gradient and casts it (NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/tensor_parallel/cross_entropy.py, megatron/core/fusions/fused_cross_entropy.py).
    ``te``: up to Transformer Engine 2.19 the gradient is written over the logits in forward and
    nothing else is kept; from 2.20 on forward keeps a copy of the logits beside them, and backward
    writes the gradient over that copy (TransformerEngine v2.11 and v2.20
    transformer_engine/pytorch/cross_entropy.py, ``overwrite_input``).
    """
    elements = shape.tokens * shape.vocab
    loss = Tensor(name="loss", size=shape.tokens * 4)
    statistics = 3 * shape.tokens * 4
    if model.cross_entropy_loss_fusion and model.cross_entropy_fusion_impl == "te":
        copied = (
            Tensor(name="loss.logits", size=elements * shape.act),
            Tensor(name="loss.statistics", size=shape.tokens * 8),
            Tensor(name="loss.targets", size=shape.tokens * INDEX_BYTES),
        )
        return Op(
            name="loss",
            kind=OpClass.ELEMENTWISE,
            reads=("logits",),
            writes=(loss,),
            saves=("logits",) if shape.loss_overwrites_logits else (),
            keeps=() if shape.loss_overwrites_logits else copied,
            grad_over="logits" if shape.loss_overwrites_logits else "loss.logits",
            forward_workspace=statistics,
            traffic=3 * elements * shape.act,
            flops=6 * elements,
        )
    kept = DTYPE_BYTES["fp32"] if not model.fp16_lm_cross_entropy else shape.act
    return Op(
        name="loss",
        kind=OpClass.ELEMENTWISE,
        reads=("logits",),
        writes=(loss,),
        keeps=(
            Tensor(name="loss.softmax", size=elements * kept),
            Tensor(name="loss.target_mask", size=shape.tokens),
            Tensor(name="loss.targets", size=shape.tokens * INDEX_BYTES),
        ),
        forward_workspace=statistics,
        traffic=elements * (shape.act + 3 * kept),
        flops=6 * elements,
    )
