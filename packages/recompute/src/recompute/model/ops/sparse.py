"""DeepSeek's sparse attention (``dsa``) over latents, of plain PyTorch kernels: indexer and attention.

T tokens before sequence parallelism, b sequences of s tokens, n heads on this rank, L the
``kv_lora_rank``, r the ``qk_pos_emb_head_dim``, v the ``v_head_dim``; i heads of width e in the indexer,
which is whole on every tensor-parallel rank. E = b n s s scores, R = b n s rows.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/experimental_attention_variant/dsa.py
DSAttention, DSAIndexer, FusedDSAIndexerLoss and _unfused_absorbed_dsa_fn, dsa_masking.py masked_softmax.
Peaks follow the lifetimes of the variables there; what one operation holds inside is a workspace.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.model.ops.linear import duplicated_linear, norm
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor

CORE = "self_attention.core_attention"
INDEXER = f"{CORE}.indexer"
FP32 = 4


def sparse_core(model: ModelConfig, shape: Shape, normed: str, latent: str) -> tuple[Op, ...]:
    """Operations from ``query`` [T, n, L + r] and ``key`` [T, L + r] to ``core_attn_out`` [T, n v].

    Args:
        model: The job's model.
        shape: Sizes on one rank.
        normed: Attention's input, that the indexer reads detached.
        latent: The query's latent behind its norm, that the indexer reads detached.
    """
    trains = bool(model.dsa_indexer_loss_coeff)
    return (
        _value_weight(model, shape),
        *_indexer(model, shape, normed, latent, trains=trains),
        *_scores(model, shape),
        *_softmax(shape),
        *_values(model, shape),
        _output(model, shape, trains=trains),
    )


def _scores_of(shape: Shape) -> int:
    return shape.batch * shape.heads * shape.seq * shape.seq


def _writes_out(shape: Shape) -> bool:
    """Say whether a product writes the one key, and the one value, out for each head.

    Of one sequence or one head the batch of the product is a view.
    """
    return shape.batch > 1 and shape.heads > 1


# --- indexer


def _indexer(
    model: ModelConfig, shape: Shape, normed: str, latent: str, *, trains: bool
) -> tuple[Op, ...]:
    """The indexer's queries, keys and weights, and the chosen keys.

    Its inputs are detached. Without a loss to train it (``dsa_indexer_loss_coeff``) all of it runs
    without gradients.
    """
    whole = replace(shape, sequence_parallel=False)
    hidden, ranks = shape.hidden, model.q_lora_rank or shape.hidden
    ops: list[Op] = []
    if shape.sequence_parallel and shape.tp > 1:
        ops += [
            _gather(shape, f"{INDEXER}.input", normed, "indexer.input", hidden),
            _gather(shape, f"{INDEXER}.latent", latent, "indexer.latent", ranks),
        ]
        normed, latent = "indexer.input", "indexer.latent"
    heads, width = model.dsa_indexer_n_heads or 0, model.dsa_indexer_head_dim or 0
    ops += [
        _projection(whole, "linear_wq_b", latent, "indexer.q", (ranks, heads * width)),
        _rotate(model, shape, "query", "indexer.q", heads),
        _projection(whole, "linear_wk", normed, "indexer.k", (hidden, width)),
        _key_norm(model, whole),
        _rotate(model, shape, "key", "indexer.k.normed", 1),
        _projection(whole, "linear_weights_proj", normed, "indexer.w", (hidden, heads)),
        _scaled(shape, heads),
        _choice(model, shape, trains=trains),
    ]
    return tuple(ops) if trains else tuple(_without_grad(op) for op in ops)


def _without_grad(op: Op) -> Op:
    read = (*op.reads, *op.reads_without_grad)
    return replace(op, reads=(), reads_without_grad=read, saves=(), keeps=())


def _gather(shape: Shape, name: str, source: str, target: str, width: int) -> Op:
    size = shape.tokens * width * shape.act
    return Op(
        name=f"{name}.gather",
        kind=OpClass.COMM,
        reads_without_grad=(source,),
        writes=(Tensor(name=target, size=size),),
        comm=((Link.TENSOR, size * (shape.tp - 1) // shape.tp),),
        traffic=2 * size,
    )


def _projection(whole: Shape, name: str, source: str, target: str, widths: tuple[int, int]) -> Op:
    """A linear of the indexer; a detached input gets no gradient."""
    inputs, width = widths
    op = duplicated_linear(
        f"{INDEXER}.{name}", source, target, shape=whole, inputs=inputs, width=width
    )
    return replace(op, reads=(), reads_without_grad=(source,))


def _key_norm(model: ModelConfig, whole: Shape) -> Op:
    """LayerNorm whatever the model's norm is; ``dsa_indexer_k_norm_fp32`` feeds it a copy in FP32."""
    layer_norm = replace(model, normalization="LayerNorm")
    width = model.dsa_indexer_head_dim or 0
    op = norm(
        f"{INDEXER}.k_norm",
        "indexer.k",
        "indexer.k.normed",
        model=layer_norm,
        shape=whole,
        width=width,
    )
    if not model.dsa_indexer_k_norm_fp32 or whole.act == FP32:
        return op
    size = whole.tokens * width * FP32
    copy = Tensor(name="indexer.k.fp32", size=size)
    return replace(op, saves=(), keeps=(*op.keeps, copy), forward_workspace=size)


def _rotate(model: ModelConfig, shape: Shape, side: str, source: str, heads: int) -> Op:
    """RoPE on the first r channels of each head, joined with the rest, and the Hadamard transform.

    Keeps cosines and sines [s, r]; the transform keeps nothing.
    """
    size = shape.tokens * heads * (model.dsa_indexer_head_dim or 0) * shape.act
    part = shape.tokens * heads * model.qk_pos_emb_head_dim * shape.act
    table = shape.seq * model.qk_pos_emb_head_dim * shape.act
    return Op(
        name=f"{INDEXER}.rotate_{side}",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name=f"indexer.{side}", size=size),),
        keeps=tuple(Tensor(name=f"indexer.{side}.{p}", size=table) for p in ("cos", "sin")),
        forward_workspace=max(3 * part, size),
        backward_workspace=max(3 * part, size),
        traffic=8 * part + 4 * size,
    )


def _scaled(shape: Shape, heads: int) -> Op:
    """The weights of the heads [T, i], scaled twice."""
    size = shape.tokens * heads * shape.act
    return Op(
        name=f"{INDEXER}.weights",
        kind=OpClass.ELEMENTWISE,
        reads=("indexer.w",),
        writes=(Tensor(name="indexer.weights", size=size),),
        forward_workspace=size,
        traffic=4 * size,
    )


def _choice(model: ModelConfig, shape: Shape, *, trains: bool) -> Op:
    """Chosen keys, int64 [b, s, k], and the loss that trains the choice.

    One autograd function computes both, keeps its inputs and the choice, and computes scores of
    attention and of the indexer again in backward. At their height lie four FP32 tensors of E with a
    mask (the softmax), or the scores [T, i, s] with their gradient. The causal bounds of each row
    hang on the function without being saved tensors: int64, two a token of one sequence.
    """
    heads, width = model.dsa_indexer_n_heads or 0, model.dsa_indexer_head_dim or 0
    pairs = shape.batch * shape.seq * shape.seq
    attention, index = _scores_of(shape), pairs * heads
    chosen = shape.batch * shape.seq * min(model.dsa_indexer_topk or 0, shape.seq) * 8
    topk = Tensor(name="topk", size=chosen)
    op = Op(
        name=f"{INDEXER}.topk",
        kind=OpClass.ATTENTION,
        reads=("indexer.query", "indexer.weights", "indexer.key"),
        writes=(topk,),
        forward_workspace=2 * index * FP32 + 2 * pairs * FP32,
        flops=2 * index * width,
        traffic=6 * index * FP32,
    )
    if not trains:
        return op
    inner = model.kv_lora_rank + model.qk_pos_emb_head_dim
    return replace(
        op,
        reads_without_grad=("query", "key"),
        writes=(topk, Tensor(name="indexer.loss", size=FP32)),
        saves=(*op.reads, "query", "key", "topk"),
        keeps=(Tensor(name="indexer.bounds", size=2 * shape.seq * 8),),
        forward_workspace=max(2 * index * FP32, 4 * attention * FP32 + attention)
        + 2 * pairs * FP32,
        backward_workspace=max(3 * index * FP32 + index, 4 * attention * FP32 + attention)
        + 3 * pairs * FP32,
        flops=op.flops + 2 * attention * inner,
        traffic=op.traffic + 10 * attention * FP32,
    )


# --- attention over the chosen keys


def _value_weight(model: ModelConfig, shape: Shape) -> Op:
    """A contiguous copy of the value half of the up projection, [n, v, L]; of one head it is a view."""
    copied = shape.heads if shape.heads > 1 else 0
    size = copied * model.v_head_dim * model.kv_lora_rank * shape.act
    return Op(
        name=f"{CORE}.inputs",
        kind=OpClass.ELEMENTWISE,
        writes=(Tensor(name="v_up_weight", size=size),),
        traffic=2 * size,
    )


def _scores(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """FP32 scores of all keys, those that are not chosen at minus infinity.

    One key serves all heads.
    """
    scores, inner = _scores_of(shape) * FP32, model.kv_lora_rank + model.qk_pos_emb_head_dim
    pairs = shape.batch * shape.seq * shape.seq
    query, key = (shape.tokens * heads * inner * FP32 for heads in (shape.heads, 1))
    saves, keeps = ["query"], list[Tensor]()
    if shape.act != FP32:
        saves, keeps = [], [Tensor(name="query.fp32", size=query)]
    if _writes_out(shape):
        keeps.append(Tensor(name="key.expanded", size=query))
    elif shape.act != FP32:
        keeps.append(Tensor(name="key.fp32", size=key))
    else:
        saves.append("key")
    product = Op(
        name=f"{CORE}.scores",
        kind=OpClass.ATTENTION,
        reads=("query", "key"),
        writes=(Tensor(name="scores", size=scores),),
        saves=tuple(saves),
        keeps=tuple(keeps),
        forward_workspace=scores,
        backward_workspace=scores + 2 * query,
        flops=2 * _scores_of(shape) * inner,
        traffic=3 * scores,
    )
    masked = Op(
        name=f"{CORE}.index_mask",
        kind=OpClass.ELEMENTWISE,
        reads=("scores",),
        reads_without_grad=("topk",),
        writes=(
            Tensor(name="scores.chosen", size=scores),
            Tensor(name="index_mask", size=pairs * FP32),
            Tensor(name="index_mask.valid", size=pairs),
        ),
        passes_grad=True,
        forward_workspace=pairs * FP32,
        traffic=2 * scores,
    )
    return product, masked


def _softmax(shape: Shape) -> tuple[Op, ...]:
    """A softmax step by step: three masks of E bytes and two FP32 tensors of E stay for backward."""
    elements, rows = _scores_of(shape), shape.batch * shape.heads * shape.seq
    size = elements * FP32

    def step(name: str, reads: tuple[str, ...], target: str, **fields: object) -> Op:
        op = Op(
            name=f"{CORE}.softmax.{name}",
            kind=OpClass.ELEMENTWISE,
            reads=reads,
            writes=(Tensor(name=target, size=size),),
            traffic=2 * size,
        )
        return replace(op, **fields)  # type: ignore[arg-type]

    def mask(name: str) -> tuple[Tensor, ...]:
        return (Tensor(name=f"softmax.mask.{name}", size=elements),)

    largest = Op(
        name=f"{CORE}.softmax.largest",
        kind=OpClass.ELEMENTWISE,
        reads=("scores.filled",),
        writes=(Tensor(name="row_max", size=rows * FP32),),
        keeps=(
            Tensor(name="row_max.indices", size=rows * 8),
            Tensor(name="row_max.valid", size=rows),
        ),
        traffic=size,
    )
    return (
        step("fill", ("scores.chosen",), "scores.filled", keeps=mask("scores")),
        largest,
        step(
            "exp",
            ("scores.filled", "row_max"),
            "exp",
            saves=("exp",),
            forward_workspace=size,
        ),
        step("mask", ("exp",), "exp.masked", keeps=mask("exp")),
        step(
            "divide",
            ("exp.masked",),
            "quotient",
            saves=("exp.masked",),
            keeps=tuple(
                Tensor(name=f"row_sum.{name}", size=rows * FP32) for name in ("plain", "clamped")
            ),
            backward_workspace=2 * size,
        ),
        step(
            "clear",
            ("quotient",),
            "probs.fp32",
            keeps=mask("quotient"),
            reads_without_grad=("scores.chosen", "scores.filled"),
        ),
    )


def _values(model: ModelConfig, shape: Shape) -> tuple[Op, ...]:
    """The weighted sum of latents, [T, n, L]; in 16 bits the probabilities are cast first."""
    elements, latent = _scores_of(shape), model.kv_lora_rank
    out = shape.tokens * shape.heads * latent * shape.act
    probs = "probs.fp32" if shape.act == FP32 else "probs"
    several = _writes_out(shape)
    held = ("index_mask", "index_mask.valid", *(("probs.fp32",) if probs == "probs" else ()))
    product = Op(
        name=f"{CORE}.values",
        kind=OpClass.ATTENTION,
        reads=(probs, "key"),
        reads_without_grad=held,
        writes=(Tensor(name="attended", size=out),),
        saves=(probs,) if several else (probs, "key"),
        keeps=(Tensor(name="value.expanded", size=out),) if several else (),
        forward_workspace=out,
        backward_workspace=out,
        flops=2 * elements * latent,
        traffic=elements * shape.act + 2 * out,
    )
    if probs == "probs.fp32":
        return (product,)
    cast = Op(
        name=f"{CORE}.cast",
        kind=OpClass.CAST,
        reads=("probs.fp32",),
        writes=(Tensor(name="probs", size=elements * shape.act),),
        traffic=elements * (FP32 + shape.act),
    )
    return cast, product


def _output(model: ModelConfig, shape: Shape, *, trains: bool) -> Op:
    """The value up projection behind the sum, [T, n v]; the indexer's loss hangs on its output.

    Its weight's gradient is written out for both halves, as is that of the key half.
    """
    width = shape.heads * model.v_head_dim
    size, weight = shape.tokens * width * shape.act, width * model.kv_lora_rank * shape.act
    held = ("indexer.query", "indexer.key", "indexer.weights")
    return Op(
        name=CORE,
        kind=OpClass.ATTENTION,
        reads=("attended", *(("indexer.loss",) if trains else ())),
        reads_without_grad=("v_up_weight", *held),
        writes=(Tensor(name="core_attn_out", size=size),),
        saves=("attended", "v_up_weight", *(("indexer.loss",) if trains else ())),
        forward_workspace=size,
        backward_workspace=size + 2 * weight,
        flops=2 * shape.tokens * width * model.kv_lora_rank,
        traffic=shape.tokens * shape.heads * model.kv_lora_rank * shape.act + 2 * size,
    )
