"""Flex dispatchers of a mixture of experts: DeepEP and HybridEP.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/token_dispatcher.py
_DeepepManager, _HybridEPManager and fused_a2a.py.
"""

from __future__ import annotations

from math import comb

from recompute.config.schema import ModelConfig
from recompute.model.ops.permutation import ROW_ID, Routed, routed, selection, unpermute
from recompute.model.ops.routing import INDEX, map_name, probs_name
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor


def distinct_tokens(model: ModelConfig, shape: Shape) -> int:
    """Tokens that DeepEP brings to this rank: each once, however many of its experts are here.

    The mean over uniformly chosen experts, times the load factor.
    """
    experts, top = model.num_moe_experts or 1, model.moe_router_topk
    elsewhere = comb(experts - shape.local_experts, top) / comb(experts, top)
    everyone = shape.stream_tokens * shape.ep * shape.etp
    return min(everyone, int(everyone * (1 - elsewhere) * shape.expert_load))


def deepep(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """Dispatch each token once to a rank, then permute it to its local experts.

    Keeps the chosen probabilities' index of the conversion from map to indices, and the row map.
    """
    counts, tokens = routed(model, shape), distinct_tokens(model, shape)
    top, local = model.moe_router_topk, shape.local_experts
    chosen = shape.stream_tokens * top
    sent = int(chosen * counts.token * (shape.ep - 1) / shape.ep)
    exchange = Op(
        name="mlp.token_dispatcher.dispatch",
        kind=OpClass.COMM,
        reads=(source, probs_name(model)),
        reads_without_grad=(map_name(model),),
        writes=(
            Tensor(name="dispatched.input", size=tokens * counts.token),
            Tensor(name="dispatched.probs", size=tokens * local * counts.prob),
            Tensor(name="dispatched.map", size=tokens * local),
        ),
        keeps=(
            Tensor(name="dispatch.indices", size=chosen * INDEX),
            Tensor(name="dispatch.rows", size=tokens * top * INDEX),
        ),
        comm=((Link.EXPERT, sent),),
        traffic=(shape.stream_tokens + tokens) * counts.token,
    )
    return exchange, _deepep_permute(model, shape, counts, tokens)


def _deepep_permute(model: ModelConfig, shape: Shape, counts: Routed, tokens: int) -> Op:
    local = shape.local_experts
    fused = model.moe_permute_fusion
    index = tokens * (2 * local + 1) * ROW_ID if fused else counts.received * INDEX
    return Op(
        name="mlp.token_dispatcher.permute",
        kind=OpClass.ROUTING,
        reads=("dispatched.input", "dispatched.probs"),
        reads_without_grad=("dispatched.map",),
        writes=(
            Tensor(name="experts.input", size=counts.received * counts.token),
            Tensor(name="experts.probs", size=counts.received * counts.prob),
            Tensor(name="permute.index", size=index),
        ),
        saves=("permute.index",),
        keeps=selection(model, shape, counts, tokens * local),
        retains=("permute.index",),
        traffic=(tokens + counts.received) * counts.token,
    )


def deepep_back(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Add a token's local expert outputs up, then send each token back once."""
    counts, tokens = routed(model, shape), distinct_tokens(model, shape)
    size = tokens * counts.token
    back = Op(
        name="mlp.token_dispatcher.combine",
        kind=OpClass.COMM,
        reads=("unpermuted",),
        writes=(Tensor(name=target, size=shape.stream_tokens * counts.token),),
        comm=((Link.EXPERT, size * (shape.ep - 1) // shape.ep),),
        traffic=2 * size,
    )
    return unpermute(source, "unpermuted", size, counts.received), back


def hybridep(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """Permute and all-to-all in one kernel; its handle lies in buffers of the whole model."""
    counts = routed(model, shape)
    leaving = counts.sent * (counts.token + counts.prob) * (shape.ep - 1) // shape.ep
    return (
        Op(
            name="mlp.token_dispatcher.dispatch",
            kind=OpClass.COMM,
            reads=(source, probs_name(model)),
            reads_without_grad=(map_name(model),),
            writes=(
                Tensor(name="experts.input", size=counts.received * counts.token),
                Tensor(name="experts.probs", size=counts.received * counts.prob),
            ),
            comm=((Link.EXPERT, leaving),),
            traffic=(shape.stream_tokens + counts.received) * counts.token,
        ),
    )


def hybridep_back(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Send expert outputs back and add them up in one kernel."""
    counts = routed(model, shape)
    size = counts.received * counts.token
    return (
        Op(
            name="mlp.token_dispatcher.combine",
            kind=OpClass.COMM,
            reads=(source,),
            writes=(Tensor(name=target, size=shape.stream_tokens * counts.token),),
            comm=((Link.EXPERT, size * (shape.ep - 1) // shape.ep),),
            traffic=2 * size,
        ),
    )
