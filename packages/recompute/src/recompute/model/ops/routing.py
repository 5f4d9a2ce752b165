"""The router of a mixture of experts: which experts a token goes to, and with what weight.

S tokens of one micro-batch on one rank after sequence parallelism, E experts, k experts a token.
Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/router.py TopKRouter and
megatron/core/transformer/moe/moe_utils.py topk_routing_with_score_function,
compute_routing_scores_for_aux_loss, RouterGatingLinearFunction.
"""

from __future__ import annotations

from typing import Final

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.shape import DTYPE_BYTES, Shape
from recompute.model.tape import Op, OpClass, Tensor

INDEX: Final = 8
"""Bytes of an index: PyTorch's top-k and argsort give int64."""
FP32: Final = 4
SINKHORN: Final = "sinkhorn"
AUX_LOSSES: Final = ("aux_loss", "seq_aux_loss", "global_aux_loss")
PROBS, ROUTING_MAP = "router.probs", "router.routing_map"


def router_bytes(model: ModelConfig, shape: Shape) -> int:
    """Bytes of one routing logit or probability (``moe_router_dtype``)."""
    if model.moe_router_dtype is None:
        return shape.act
    return 8 if model.moe_router_dtype == "fp64" else DTYPE_BYTES[model.moe_router_dtype]


def router(model: ModelConfig, shape: Shape, source: str) -> tuple[Op, ...]:
    """Operations from the normed stream [S, H] to probabilities and routing map [S, E]."""
    balancing = _load_balancing(model)
    if not balancing <= {*AUX_LOSSES, "none", SINKHORN} or (
        SINKHORN in balancing and len(balancing) > 1
    ):
        named = ", ".join(sorted(balancing))
        raise UnsupportedError(
            "unsupported-router",
            f"moe_router_load_balancing_type {named} is not modelled",
            hint="use aux_loss, seq_aux_loss, global_aux_loss, sinkhorn alone or none",
            data={"field": "model.moe_router_load_balancing_type", "value": named},
        )
    ops: list[Op] = []
    if model.moe_input_jitter_eps is not None:
        ops.append(_jitter(shape, source))
        source = "router.jittered"
    ops.append(_gating(model, shape, source))
    logits = "router.logits"
    if model.moe_z_loss_coeff is not None:
        ops.append(_z_loss(model, shape))
        logits = "router.logits_z"
    ops.append(_top_k(model, shape, logits))
    if model.moe_expert_capacity_factor is not None:
        ops.append(_drop(model, shape))
    if has_aux_loss(model):
        ops.append(_aux_loss(model, shape, logits))
    return tuple(ops)


def _load_balancing(model: ModelConfig) -> set[str]:
    kinds = model.moe_router_load_balancing_type
    return {kinds} if isinstance(kinds, str) else set(kinds)


def is_sinkhorn(model: ModelConfig) -> bool:
    """Say whether tokens are balanced by Sinkhorn iterations instead of a loss."""
    return SINKHORN in _load_balancing(model)


def has_aux_loss(model: ModelConfig) -> bool:
    """Say whether an auxiliary loss with a positive coefficient is attached."""
    kinds = model.moe_router_load_balancing_type
    coefficients = model.moe_aux_loss_coeff
    names = (kinds,) if isinstance(kinds, str) else kinds
    values = coefficients if isinstance(coefficients, tuple) else (coefficients,) * len(names)
    return any(name in AUX_LOSSES and value > 0 for name, value in zip(names, values, strict=False))


def probs_name(model: ModelConfig) -> str:
    """Name the probabilities that leave the router."""
    return f"{PROBS}.kept" if model.moe_expert_capacity_factor is not None else PROBS


def map_name(model: ModelConfig) -> str:
    """Name the routing map that leaves the router."""
    return f"{ROUTING_MAP}.kept" if model.moe_expert_capacity_factor is not None else ROUTING_MAP


def _jitter(shape: Shape, source: str) -> Op:
    """Multiplication with uniform noise, which is kept."""
    size = shape.stream_tokens * shape.hidden * shape.act
    return Op(
        name="mlp.router.jitter",
        kind=OpClass.ELEMENTWISE,
        reads=(source,),
        writes=(Tensor(name="router.jittered", size=size),),
        keeps=(Tensor(name="router.noise", size=size),),
        traffic=3 * size,
    )


def _gating(model: ModelConfig, shape: Shape, source: str) -> Op:
    """One GEMM into the router's dtype; its input is kept as it is, never cast.

    Backward casts input and its gradient to the router's dtype for a moment.
    """
    experts, dtype = model.num_moe_experts or 0, router_bytes(model, shape)
    wider = 2 * shape.stream_tokens * shape.hidden * dtype if dtype > shape.act else 0
    return Op(
        name="mlp.router.gating",
        kind=OpClass.ROUTING,
        reads=(source,),
        writes=(Tensor(name="router.logits", size=shape.stream_tokens * experts * dtype),),
        saves=(source,),
        weight_bytes=experts * (shape.hidden + model.add_bias_linear) * shape.act,
        backward_workspace=wider,
        flops=2 * shape.stream_tokens * shape.hidden * experts,
        traffic=shape.stream_tokens * (shape.hidden * shape.act + experts * dtype),
    )


def _z_loss(model: ModelConfig, shape: Shape) -> Op:
    """Squared log-sum-exp of the logits, attached to them; keeps the logits and [S] sums."""
    dtype = router_bytes(model, shape)
    size = shape.stream_tokens * (model.num_moe_experts or 0) * dtype
    return Op(
        name="mlp.router.z_loss",
        kind=OpClass.ROUTING,
        reads=("router.logits",),
        writes=(Tensor(name="router.logits_z", size=size, storage="router.logits"),),
        saves=("router.logits",),
        keeps=(
            Tensor(name="router.logsumexp", size=shape.stream_tokens * dtype),
            Tensor(name="router.z_loss", size=dtype),
        ),
        passes_grad=True,
        backward_workspace=size,
        traffic=2 * size,
    )


def _top_k(model: ModelConfig, shape: Shape, logits: str) -> Op:
    """Scores, top-k, normalisation and the scatter into [S, E]."""
    tokens, experts = shape.stream_tokens, model.num_moe_experts or 0
    every, dtype = tokens * experts * FP32, router_bytes(model, shape)
    return Op(
        name="mlp.router.topk",
        kind=OpClass.ROUTING,
        reads=(logits,),
        writes=(
            Tensor(name=PROBS, size=tokens * experts * dtype),
            Tensor(name=ROUTING_MAP, size=tokens * experts),
        ),
        saves=(ROUTING_MAP,) if model.moe_router_fusion or is_sinkhorn(model) else (),
        keeps=tuple(
            Tensor(name=f"router.{name}", size=size)
            for name, size in _scores(model, tokens, experts).items()
        ),
        retains=() if model.moe_expert_capacity_factor is not None else (PROBS, ROUTING_MAP),
        forward_workspace=0
        if model.moe_router_fusion
        else every * (3 if is_sinkhorn(model) else 1),
        backward_workspace=2 * every,
        traffic=4 * every,
    )


def _scores(model: ModelConfig, tokens: int, experts: int) -> dict[str, int]:
    """What scoring keeps, by name.

    The softmax keeps its FP32 result: over the chosen k, or over all E when it comes first
    (``moe_router_pre_softmax``). The sigmoid keeps its FP32 scores over all E, the chosen ones and
    their sum. Both keep the chosen indices, group limits their mask [S, E]. Transformer Engine's
    fused router keeps the map and FP32 scores (transformer_engine/pytorch/router.py, v2.20). Sinkhorn
    finds its indices without gradients and keeps the FP32 softmax (TopKRouter.sinkhorn_load_balancing).
    """
    every, top = tokens * experts * FP32, model.moe_router_topk
    if is_sinkhorn(model):
        return {"scores": every}
    if model.moe_router_fusion:
        return {"scores": every}
    kept = {"indices": tokens * top * INDEX}
    if model.moe_router_group_topk:
        kept["group_mask"] = tokens * experts
    if model.moe_router_score_function == "softmax":
        first = model.moe_router_pre_softmax
        return kept | ({"scores": every} if first else {"probs": tokens * top * FP32})
    if model.moe_router_score_function != "sigmoid":
        raise UnsupportedError(
            "unsupported-router",
            f"moe_router_score_function {model.moe_router_score_function} is not modelled",
            hint="use softmax or sigmoid",
            data={"field": "model.moe_router_score_function"},
        )
    kept["scores"] = every
    if top > 1:
        kept |= {"chosen": tokens * top * FP32, "sums": tokens * FP32}
    return kept


def _drop(model: ModelConfig, shape: Shape) -> Op:
    """Keep each expert's tokens within its capacity; the mask is kept."""
    tokens, experts = shape.stream_tokens, model.num_moe_experts or 0
    dtype = router_bytes(model, shape)
    probs, kept = map_name(model), probs_name(model)
    return Op(
        name="mlp.router.token_dropping",
        kind=OpClass.ROUTING,
        reads=(PROBS,),
        reads_without_grad=(ROUTING_MAP,),
        writes=(
            Tensor(name=kept, size=tokens * experts * dtype),
            Tensor(name=probs, size=tokens * experts),
        ),
        saves=(probs,),
        retains=(kept, probs),
        traffic=4 * tokens * experts * dtype,
    )


def _aux_loss(model: ModelConfig, shape: Shape, logits: str) -> Op:
    """Scores over all experts in FP32 [S, E] for the balancing loss, kept until its backward.

    One set of scores serves every kind of auxiliary loss. The loss is attached to the probabilities,
    which pass unchanged.
    """
    experts = model.num_moe_experts or 0
    size = shape.stream_tokens * experts * FP32
    keeps = [
        Tensor(name="router.aux_scores", size=size),
        Tensor(name="router.aux_tokens", size=experts * INDEX),
        Tensor(name="router.aux_scalar", size=FP32),
    ]
    if model.moe_router_score_function == "sigmoid" and not model.moe_router_fusion:
        keeps.append(Tensor(name="router.aux_sums", size=shape.stream_tokens * FP32))
    return Op(
        name="mlp.router.aux_loss",
        kind=OpClass.ROUTING,
        reads=(logits,),
        writes=(Tensor(name="router.aux_loss", size=512),),
        keeps=tuple(keeps),
        forward_workspace=2 * size,
        backward_workspace=2 * size,
        traffic=4 * size,
    )
