"""Token dispatchers of a mixture of experts: from a rank's tokens to its experts' and back.

S tokens of one micro-batch on one rank after sequence parallelism, E experts, k experts a token,
N tokens that this rank's experts process, D the width that travels (the hidden size, or
``moe_latent_size``). Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/transformer/moe/token_dispatcher.py and moe_utils.py permute, unpermute,
sort_chunks_by_idxs; fused permutation in TransformerEngine v2.20
transformer_engine/pytorch/permutation.py and triton/permutation.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, comb
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.ops.number_formats import padding_tokens
from recompute.model.ops.routing import INDEX, map_name, probs_name, router_bytes
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor

ROW_ID: Final = 4
"""Bytes of an entry of Transformer Engine's row map, int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Token counts of one micro-batch on one rank, and bytes of a token."""

    sent: int
    """Copies of this rank's tokens, one for each chosen expert."""
    received: int
    """N: tokens that this rank's experts process."""
    padded: int
    """N with each expert's share filled up to what a quantized GEMM takes, in the mean."""
    token: int
    """Bytes of one token that travels."""
    prob: int
    """Bytes of one probability."""


def routed(model: ModelConfig, shape: Shape) -> Routed:
    """Count tokens. ``shape.expert_load`` scales what arrives, never what is sent."""
    tokens, top = shape.stream_tokens, model.moe_router_topk
    experts = model.num_moe_experts or 1
    sent = tokens * top
    arriving = int(sent * shape.etp * shape.expert_load)
    if model.moe_expert_capacity_factor is not None:
        capacity = ceil(sent / experts * model.moe_expert_capacity_factor)
        most = capacity * shape.local_experts * shape.ep * shape.etp
        padded = model.moe_pad_expert_input_to_capacity
        sent = capacity * experts if padded else min(sent, capacity * experts)
        arriving = most if padded else min(arriving, most)
    width = model.moe_latent_size or shape.hidden
    flex = model.moe_token_dispatcher_type == "flex" or model.moe_enable_deepep
    return Routed(
        sent=sent,
        received=arriving,
        padded=arriving + padding_tokens(model, shape),
        token=width * shape.act,
        prob=max(4, router_bytes(model, shape)) if flex else router_bytes(model, shape),
    )


def dispatcher_kind(model: ModelConfig) -> str:
    """Name the dispatcher: ``alltoall``, ``allgather``, ``deepep`` or ``hybridep``.

    Raises:
        UnsupportedError: ``unsupported-dispatcher``.
    """
    kind = model.moe_token_dispatcher_type
    if model.moe_enable_deepep:
        kind = "deepep"
    elif kind == "flex":
        kind = model.moe_flex_dispatcher_backend
    if kind not in ("alltoall", "allgather", "deepep", "hybridep"):
        raise UnsupportedError(
            "unsupported-dispatcher",
            f"token dispatcher {kind} is not modelled",
            hint="use alltoall, allgather, or flex with deepep or hybridep",
            data={"field": "model.moe_token_dispatcher_type", "value": kind},
        )
    return kind


def dispatch(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """Operations from tokens [S, D] to the experts' input [N, D] and its probabilities [N].

    Writes ``experts.input`` and ``experts.probs``.
    """
    return _DISPATCH[dispatcher_kind(model)][0](model, shape, source)


def combine(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    """Operations from the experts' output [N, D] to tokens [S, D]."""
    return _DISPATCH[dispatcher_kind(model)][1](model, shape, source, target)


# --- alltoall


def _alltoall(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """Permute, all-to-all over experts, gather inside an expert, sort by local expert."""
    counts = routed(model, shape)
    sizes = (counts.sent, counts.received // shape.etp, counts.received)
    names = ["permuted"]
    ops = [_permute(model, shape, source, counts)]
    if shape.ep > 1:
        names.append("dispatched")
        ops.append(_exchange("dispatch", names[-2:], sizes[:2], counts, shape))
    if shape.etp > 1:
        names.append("gathered")
        ops.append(_gather_expert(names[-2:], counts))
    if shape.local_experts > 1:
        names.append("experts")
        ops.append(_sort(model, counts, names[-2:]))
    return (*ops, _alias(names[-1], counts)) if names[-1] != "experts" else tuple(ops)


def _alias(source: str, counts: Routed) -> Op:
    """The experts read what was dispatched, without a copy."""
    return Op(
        name="mlp.token_dispatcher.postprocess",
        kind=OpClass.ROUTING,
        reads=(f"{source}.input", f"{source}.probs"),
        writes=(
            Tensor(
                name="experts.input",
                size=counts.received * counts.token,
                storage=f"{source}.input",
            ),
            Tensor(
                name="experts.probs", size=counts.received * counts.prob, storage=f"{source}.probs"
            ),
        ),
        passes_grad=True,
    )


def _permute(model: ModelConfig, shape: Shape, source: str, counts: Routed) -> Op:
    """Copy each token once for each chosen expert, in the order of experts; keep their rows.

    Fused, one row map [S, 2 E + 1] is kept.
    """
    experts, local, tokens = model.num_moe_experts or 0, shape.stream_tokens, counts.sent
    index = local * (2 * experts + 1) * ROW_ID if model.moe_permute_fusion else tokens * INDEX
    return Op(
        name="mlp.token_dispatcher.permute",
        kind=OpClass.ROUTING,
        reads=(source, probs_name(model)),
        reads_without_grad=(map_name(model),),
        writes=(
            Tensor(name="permuted.input", size=tokens * counts.token),
            Tensor(name="permuted.probs", size=tokens * counts.prob),
            Tensor(name="permute.index", size=index),
        ),
        saves=("permute.index",),
        keeps=_selection(model, shape, counts, experts * local),
        retains=("permute.index",),
        forward_workspace=0 if model.moe_permute_fusion else 2 * experts * local * INDEX,
        traffic=(local + tokens) * counts.token,
    )


def _selection(model: ModelConfig, shape: Shape, counts: Routed, every: int) -> tuple[Tensor, ...]:
    """What the unfused selection of probabilities keeps.

    By sort, an index: a slice that holds all of the sorted map, or exactly the slots of padded
    experts. By mask, transposed copies of probabilities and map.
    """
    if model.moe_permute_fusion:
        return ()
    if model.moe_pad_expert_input_to_capacity:
        return (Tensor(name="permute.sorted", size=counts.sent * INDEX),)
    if shape.permutes_by_sort:
        return (Tensor(name="permute.sorted", size=every * INDEX),)
    return (
        Tensor(name="permute.probs", size=every * counts.prob),
        Tensor(name="permute.map", size=every),
    )


def _exchange(
    name: str, names: list[str], sizes: tuple[int, int], counts: Routed, shape: Shape
) -> Op:
    """All-to-all of tokens and probabilities over the expert group."""
    source, target = names
    leaving = sizes[0] * (counts.token + counts.prob) * (shape.ep - 1) // shape.ep
    return Op(
        name=f"mlp.token_dispatcher.{name}",
        kind=OpClass.COMM,
        reads=(f"{source}.input", f"{source}.probs"),
        writes=(
            Tensor(name=f"{target}.input", size=sizes[1] * counts.token),
            Tensor(name=f"{target}.probs", size=sizes[1] * counts.prob),
        ),
        comm=((Link.EXPERT, leaving),),
        traffic=(sizes[0] + sizes[1]) * counts.token,
    )


def _gather_expert(names: list[str], counts: Routed) -> Op:
    """All-gather over the tensor group inside an expert."""
    source, target = names
    return Op(
        name="mlp.token_dispatcher.gather",
        kind=OpClass.COMM,
        reads=(f"{source}.input", f"{source}.probs"),
        writes=(
            Tensor(name=f"{target}.input", size=counts.received * counts.token),
            Tensor(name=f"{target}.probs", size=counts.received * counts.prob),
        ),
        comm=((Link.TENSOR, counts.received * counts.token),),
        traffic=2 * counts.received * counts.token,
    )


def _sort(model: ModelConfig, counts: Routed, names: list[str]) -> Op:
    """Bring chunks that came from each rank into the order of local experts: a copy."""
    source, target = names
    row_map = Tensor(name="sort.index", size=counts.received * ROW_ID)
    return Op(
        name="mlp.token_dispatcher.sort",
        kind=OpClass.ROUTING,
        reads=(f"{source}.input", f"{source}.probs"),
        writes=(
            Tensor(name=f"{target}.input", size=counts.received * counts.token),
            Tensor(name=f"{target}.probs", size=counts.received * counts.prob),
        ),
        keeps=(row_map,) if model.moe_permute_fusion else (),
        traffic=2 * counts.received * counts.token,
    )


def _alltoall_back(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    counts = routed(model, shape)
    ops: list[Op] = []
    output = source
    if shape.local_experts > 1:
        keeps = (Tensor(name="unsort.index", size=counts.received * ROW_ID),)
        size = counts.received * counts.token
        ops.append(
            _step("unsort", source, "unsorted", size, keeps if model.moe_permute_fusion else ())
        )
        source = "unsorted"
    if shape.etp > 1:
        ops.append(_reduce_expert(source, counts, shape))
        if source != output:  # routed_experts_compute's own variable
            ops[-1] = replace(ops[-1], reads_without_grad=(output,))
        source = "reduced"
    if shape.ep > 1:
        ops.append(_return(source, counts, shape))
        source = "returned"
    return (*ops, _unpermute(source, target, shape.stream_tokens * counts.token, counts.sent))


def _step(name: str, source: str, target: str, size: int, keeps: tuple[Tensor, ...] = ()) -> Op:
    return Op(
        name=f"mlp.token_dispatcher.{name}",
        kind=OpClass.ROUTING,
        reads=(source,),
        writes=(Tensor(name=target, size=size),),
        keeps=keeps,
        traffic=2 * size,
    )


def _reduce_expert(source: str, counts: Routed, shape: Shape) -> Op:
    """Reduce-scatter over the tensor group inside an expert, in the router's dtype."""
    size = counts.received * counts.token
    return Op(
        name="mlp.token_dispatcher.reduce",
        kind=OpClass.COMM,
        reads=(source,),
        writes=(Tensor(name="reduced", size=size // shape.etp),),
        forward_workspace=size * counts.prob // shape.act if counts.prob > shape.act else 0,
        comm=((Link.TENSOR, size * (shape.etp - 1) // shape.etp),),
        traffic=2 * size,
    )


def _return(source: str, counts: Routed, shape: Shape) -> Op:
    size = counts.received // shape.etp * counts.token
    return Op(
        name="mlp.token_dispatcher.combine",
        kind=OpClass.COMM,
        reads=(source,),
        writes=(Tensor(name="returned", size=counts.sent * counts.token),),
        comm=((Link.EXPERT, size * (shape.ep - 1) // shape.ep),),
        traffic=2 * size,
    )


def _unpermute(source: str, target: str, size: int, tokens: int) -> Op:
    """Add each token's expert outputs up; keeps the index that permuted them."""
    return Op(
        name="mlp.token_dispatcher.unpermute",
        kind=OpClass.ROUTING,
        reads=(source,),
        reads_without_grad=("permute.index",),
        writes=(Tensor(name=target, size=size),),
        saves=("permute.index",),
        traffic=size + tokens * (size // max(tokens, 1)),
    )


# --- allgather


def _allgather(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """Gather every rank's tokens, then pick those of the local experts."""
    counts, width = routed(model, shape), shape.etp * shape.ep
    probs, mask = probs_name(model), map_name(model)
    ops: list[Op] = []
    if width > 1:
        ops.append(_gather_all(model, shape, source))
        source, probs, mask = "gathered.input", "gathered.probs", "gathered.map"
    return (*ops, _pick(model, shape, (source, probs, mask), counts))


def _gather_all(model: ModelConfig, shape: Shape, source: str) -> Op:
    counts, width = routed(model, shape), shape.etp * shape.ep
    tokens, experts = shape.stream_tokens * width, model.num_moe_experts or 0
    return Op(
        name="mlp.token_dispatcher.gather",
        kind=OpClass.COMM,
        reads=(source, probs_name(model)),
        reads_without_grad=(map_name(model),),
        writes=(
            Tensor(name="gathered.input", size=tokens * counts.token),
            Tensor(name="gathered.probs", size=tokens * experts * counts.prob),
            Tensor(name="gathered.map", size=tokens * experts),
        ),
        comm=((Link.EXPERT, tokens * counts.token * (width - 1) // width),),
        traffic=2 * tokens * counts.token,
    )


def _pick(model: ModelConfig, shape: Shape, names: tuple[str, str, str], counts: Routed) -> Op:
    """Permute the tokens of the local experts and select their probabilities.

    The selection keeps transposed copies of probabilities and map; the permutation its rows.
    """
    source, probs, mask = names
    tokens, local = shape.stream_tokens * shape.etp * shape.ep, shape.local_experts
    if model.moe_permute_fusion:
        index = tokens * (2 * local + 1) * ROW_ID
    else:
        index = counts.received * INDEX
    return Op(
        name="mlp.token_dispatcher.permute",
        kind=OpClass.ROUTING,
        reads=(source, probs),
        reads_without_grad=(mask,),
        writes=(
            Tensor(name="experts.input", size=counts.received * counts.token),
            Tensor(name="experts.probs", size=counts.received * counts.prob),
            Tensor(name="permute.index", size=index),
        ),
        saves=("permute.index",),
        keeps=(
            Tensor(name="permute.local_probs", size=tokens * local * counts.prob),
            Tensor(name="permute.local_map", size=tokens * local),
        ),
        retains=("permute.index",),
        forward_workspace=0 if model.moe_permute_fusion else 2 * tokens * local * INDEX,
        traffic=(tokens + counts.received) * counts.token,
    )


def _allgather_back(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
    counts, width = routed(model, shape), shape.etp * shape.ep
    size = shape.stream_tokens * width * counts.token
    if width == 1:
        return (_unpermute(source, target, size, counts.received),)
    reduce = Op(
        name="mlp.token_dispatcher.combine",
        kind=OpClass.COMM,
        reads=("unpermuted",),
        writes=(Tensor(name=target, size=size // width),),
        forward_workspace=size * counts.prob // shape.act if counts.prob > shape.act else 0,
        comm=((Link.EXPERT, size * (width - 1) // width),),
        traffic=2 * size,
    )
    return _unpermute(source, "unpermuted", size, counts.received), reduce


# --- flex


def distinct_tokens(model: ModelConfig, shape: Shape) -> int:
    """Tokens that DeepEP brings to this rank: each once, however many of its experts are here.

    The mean over uniformly chosen experts, times the load factor.
    """
    experts, top = model.num_moe_experts or 1, model.moe_router_topk
    elsewhere = comb(experts - shape.local_experts, top) / comb(experts, top)
    everyone = shape.stream_tokens * shape.ep * shape.etp
    return min(everyone, int(everyone * (1 - elsewhere) * shape.expert_load))


def _deepep(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
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
        keeps=_selection(model, shape, counts, tokens * local),
        retains=("permute.index",),
        traffic=(tokens + counts.received) * counts.token,
    )


def _deepep_back(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
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
    return _unpermute(source, "unpermuted", size, counts.received), back


def _hybridep(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
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


def _hybridep_back(model: ModelConfig, shape: Shape, source: str, target: str) -> tuple[Op, ...]:
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


_DISPATCH: Final = {
    "alltoall": (_alltoall, _alltoall_back),
    "allgather": (_allgather, _allgather_back),
    "deepep": (_deepep, _deepep_back),
    "hybridep": (_hybridep, _hybridep_back),
}
