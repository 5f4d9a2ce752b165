"""Token dispatchers of a mixture of experts: from a rank's tokens to its experts' and back.

S tokens of one micro-batch on one rank after sequence parallelism, E experts, k experts a token,
N tokens that this rank's experts process, D the width that travels (the hidden size, or
``moe_latent_size``). Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/transformer/moe/token_dispatcher.py and moe_utils.py sort_chunks_by_idxs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.ops.dispatch_flex import deepep, deepep_back, hybridep, hybridep_back
from recompute.model.ops.permutation import ROW_ID, Routed, routed, selection, unpermute
from recompute.model.ops.routing import INDEX, map_name, probs_name
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, OpClass, Tensor


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
        keeps=selection(model, shape, counts, experts * local),
        retains=("permute.index",),
        forward_workspace=0 if model.moe_permute_fusion else 2 * experts * local * INDEX,
        traffic=(local + tokens) * counts.token,
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
    return (*ops, unpermute(source, target, shape.stream_tokens * counts.token, counts.sent))


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
        return (unpermute(source, target, size, counts.received),)
    reduce = Op(
        name="mlp.token_dispatcher.combine",
        kind=OpClass.COMM,
        reads=("unpermuted",),
        writes=(Tensor(name=target, size=size // width),),
        forward_workspace=size * counts.prob // shape.act if counts.prob > shape.act else 0,
        comm=((Link.EXPERT, size * (width - 1) // width),),
        traffic=2 * size,
    )
    return unpermute(source, "unpermuted", size, counts.received), reduce


_DISPATCH: Final = {
    "alltoall": (_alltoall, _alltoall_back),
    "allgather": (_allgather, _allgather_back),
    "deepep": (deepep, deepep_back),
    "hybridep": (hybridep, hybridep_back),
}
