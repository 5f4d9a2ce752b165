"""How many tokens a mixture of experts moves, and what permuting them keeps.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/moe_utils.py permute, unpermute,
get_capacity; fused permutation in TransformerEngine v2.20 transformer_engine/pytorch/permutation.py
and triton/permutation.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.model.ops.number_formats import padding_tokens
from recompute.model.ops.routing import INDEX, router_bytes
from recompute.model.shape import Shape
from recompute.model.tape import Op, OpClass, Tensor

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


def selection(model: ModelConfig, shape: Shape, counts: Routed, every: int) -> tuple[Tensor, ...]:
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


def unpermute(source: str, target: str, size: int, tokens: int) -> Op:
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
