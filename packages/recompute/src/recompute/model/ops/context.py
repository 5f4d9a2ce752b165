"""Fused attention under context parallelism: what each exchange keeps and holds for a moment.

T tokens of one micro-batch on one rank. A ring (``p2p``) sends keys and values round and keeps them as
one tensor; an all-to-all (``a2a``) trades tokens for heads and keeps everything on that side, so the
output that the projection keeps is another tensor; a gather keeps what it was given.
Source: TransformerEngine v2.20
transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py
AttnFuncWithCPAndKVP2P, AttnFuncWithCPAndQKVOA2A, AttnFuncWithCPAndKVAllGather.
"""

from __future__ import annotations

from dataclasses import replace

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.shape import Shape
from recompute.model.tape import Link, Op, Tensor


def exchange_of(model: ModelConfig) -> str:
    """Return ``cp_comm_type``: ``p2p`` unless it is given, one for all layers.

    Raises:
        UnsupportedError: ``unsupported-context-parallel``.
    """
    given = model.cp_comm_type
    kinds = {given} if given is None or isinstance(given, str) else set(given)
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None and kinds:
        raise _unsupported("a cp_comm_type that differs between layers")
    if kind not in (None, "p2p", "a2a", "all_gather", "a2a+p2p"):
        raise _unsupported(f"cp_comm_type {kind}")
    return kind or "p2p"


def over_context(op: Op, shape: Shape, exchange: str, sizes: tuple[int, int, int]) -> Op:
    """Return the attention operation of one rank of a context group.

    Args:
        op: Attention over ``attn_q``, ``attn_k``, ``attn_v`` of this rank's tokens.
        shape: Sizes on one rank.
        exchange: How the ranks exchange.
        sizes: Bytes of query, of key with value, and of the output.
    """
    if shape.cp == 1:
        return op
    query, key_value, output = sizes
    others = shape.cp - 1
    if exchange == "p2p":
        return replace(
            op,
            saves=("attn_q", "core_attn_out"),
            keeps=(*op.keeps, Tensor(name="attention.ring", size=key_value)),
            forward_workspace=key_value + 2 * output + query // 2,
            backward_workspace=op.backward_workspace + 3 * key_value + query + output,
            comm=((Link.CONTEXT, key_value * others),),
        )
    if exchange == "all_gather":
        return replace(
            op,
            forward_workspace=key_value * shape.cp + output,
            backward_workspace=op.backward_workspace + 2 * key_value * shape.cp,
            comm=((Link.CONTEXT, key_value * others),),
        )
    return replace(
        op,
        saves=(),
        keeps=(
            *op.keeps,
            Tensor(name="attention.exchanged_q", size=query),
            Tensor(name="attention.exchanged_kv", size=key_value),
            Tensor(name="attention.exchanged_out", size=output),
        ),
        forward_workspace=query,
        backward_workspace=op.backward_workspace + output + query + key_value,
        comm=((Link.CONTEXT, (query + key_value + output) * others // shape.cp),),
    )


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        "unsupported-context-parallel",
        f"{what} is not modelled",
        hint="use p2p, a2a, all_gather or a2a+p2p for all layers",
        data={"field": "model.cp_comm_type"},
    )
