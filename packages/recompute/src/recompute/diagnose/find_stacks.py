"""Verdicts from the stack above the message: whose memory was asked for last."""

from __future__ import annotations

from typing import Final

from recompute.diagnose import accounting
from recompute.diagnose.finding import (
    Finding,
    from_oom,
    is_moe,
    judged,
    rank_skew,
    stage_of_failure,
)
from recompute.diagnose.frames import LAYER_OWNERS, Owner
from recompute.diagnose.observation import Observation, Oom
from recompute.diagnose.types import Stage, Verdict
from recompute.units import format_gib

UNEVEN: Final = 1.2
"""Balanced ranks ask for the same amount; this much more is more tokens."""
MIN_SKEW: Final = 0.10
"""Hot rank above the median by more than this share is skew, not noise."""


def graph_pools(seen: Observation) -> Finding | None:
    """CUDA graphs' private pools, or failure while capturing."""
    oom = judged(seen)
    if oom is None:
        return None
    if oom.stage is Stage.GRAPH_CAPTURE:
        return from_oom(
            seen,
            oom,
            "graph-capture",
            Verdict.GRAPH_POOLS,
            "the card filled up while graphs were captured",
        )
    if accounting.pools_dominate(oom.message):
        pools = oom.message.private_pools or 0
        return from_oom(
            seen,
            oom,
            "private-pools",
            Verdict.GRAPH_POOLS,
            f"private pools of captured graphs hold {format_gib(pools)}",
        )
    return None


def optimizer_stack(seen: Observation) -> Finding | None:
    """The optimizer allocates its states or works on them."""
    oom = judged(seen)
    if oom is None:
        return None
    if oom.stage in {Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP}:
        if oom.owner[0] is Owner.GRAD_BUFFER:
            return None
        return from_oom(
            seen,
            oom,
            "optimizer-stack",
            Verdict.OPTIMIZER_STATE,
            "the optimizer asked for the last piece: its states are what does not fit",
        )
    return None


def second_step(seen: Observation) -> Finding | None:
    """Fits in the first step, fails in the next forward or backward."""
    oom = judged(seen)
    if (
        oom is None
        or oom.iteration != 1
        or oom.stage not in {Stage.FORWARD, Stage.BACKWARD, Stage.LOSS}
    ):
        return None
    places = [place for file in seen.files for number, _, place in file.steps.first if number == 1]
    finding = from_oom(
        seen,
        oom,
        "second-step",
        Verdict.OPTIMIZER_STATE,
        "step 1 passed and step 2 did not: the optimizer states became resident in between",
    )
    return Finding(
        rule=finding.rule,
        verdict=finding.verdict,
        stage=finding.stage,
        places=(oom.place, *places[:1]),
        oom=oom,
        rank=finding.rank,
        summary=finding.summary,
    )


def gradient_buffer(seen: Observation) -> Finding | None:
    """Gradient buffers or their reduction."""
    oom = judged(seen)
    if oom is None:
        return None
    owner = oom.owner[0]
    if owner is Owner.GRAD_BUFFER or oom.stage is Stage.GRAD_SYNC:
        return from_oom(
            seen,
            oom,
            "gradient-buffer",
            Verdict.GRADIENTS,
            "gradient storage asked for the last piece",
        )
    return None


def load_stack(seen: Observation) -> Finding | None:
    """Parameters: building the model or loading its weights."""
    oom = judged(seen)
    if oom is None or oom.stage not in {Stage.MODEL_BUILD, Stage.CHECKPOINT, Stage.INITIALIZATION}:
        return None
    if any(
        frame.function in {"_warmup_jit_function", "set_jit_fusion_options"} for frame in oom.frames
    ):
        return from_oom(
            seen,
            oom,
            "warm-up-stack",
            Verdict.ACTIVATION,
            "the fused activation's warm-up did not fit; no training step has run",
        )
    names = {frame.function for frame in oom.frames}
    if any(name.startswith("load_parameter_state") for name in names):
        return from_oom(
            seen,
            oom,
            "optimizer-stack",
            Verdict.OPTIMIZER_STATE,
            "the loaded optimizer states did not fit",
        )
    if any(name.startswith(("save_", "_save_")) for name in names):
        return from_oom(
            seen,
            oom,
            "save-stack",
            Verdict.CAPACITY,
            "saving a checkpoint needs memory beside training",
        )
    return from_oom(
        seen,
        oom,
        "load-stack",
        Verdict.PARAMETERS,
        "the card was full before the first step: parameters",
    )


def logits_stack(seen: Observation) -> Finding | None:
    """Logits and the loss over the vocabulary."""
    oom = judged(seen)
    if oom is None or oom.owner[0] is not Owner.LOGITS:
        return None
    if oom.stage in {Stage.EVALUATION, Stage.UNKNOWN} and not oom.frames:
        return None
    return from_oom(
        seen,
        oom,
        "logits-stack",
        Verdict.LOGITS,
        "the logits or their cross entropy asked for the last piece",
    )


def skewed_ranks(seen: Observation) -> Finding | None:
    """Expert imbalance: one rank far above the others."""
    oom = judged(seen)
    if oom is None:
        return None
    moe = oom.owner[0] in {Owner.MOE, Owner.EXPERT} or is_moe(seen)
    skew = rank_skew(seen)
    if not moe or skew is None or skew[2] <= MIN_SKEW:
        return None
    rank, hot, share = skew
    return Finding(
        rule="skewed-ranks",
        verdict=Verdict.IMBALANCE,
        stage=stage_of_failure(seen, oom),
        places=(oom.place,),
        oom=oom,
        rank=rank,
        summary=f"rank {rank} holds {format_gib(hot)}, {share:.0%} above the median rank, in an expert layer",
    )


def uneven_requests(seen: Observation) -> Finding | None:
    """Ranks that asked for different amounts at the same line of an expert layer."""
    groups: dict[tuple[str, int], list[Oom]] = {}
    for oom in seen.ooms:
        owner, frame = oom.owner
        if owner in {Owner.MOE, Owner.EXPERT} and frame is not None and oom.message.requested:
            groups.setdefault((frame.file, frame.line), []).append(oom)
    for ooms in groups.values():
        ranks = {oom.place.rank for oom in ooms}
        largest = max(ooms, key=lambda oom: oom.message.requested or 0)
        least = min(oom.message.requested or 0 for oom in ooms)
        if len(ranks) < 2 or (largest.message.requested or 0) < UNEVEN * least:
            continue
        return from_oom(
            seen,
            largest,
            "uneven-requests",
            Verdict.IMBALANCE,
            f"at one line of an expert layer ranks asked for {format_gib(least)} to {format_gib(largest.message.requested or 0)}: they received different numbers of tokens",
        )
    return None


def activation_stack(seen: Observation) -> Finding | None:
    """A layer's forward, or its replay or gradient in backward."""
    oom = judged(seen)
    if oom is None or not oom.frames:
        return None
    owner, frame = oom.owner
    if oom.stage is Stage.EVALUATION:
        return from_oom(
            seen,
            oom,
            "evaluation-stack",
            Verdict.ACTIVATION,
            "evaluation ran out: recompute is off outside training mode",
        )
    if oom.stage is Stage.DATA:
        return from_oom(seen, oom, "data-stack", Verdict.ACTIVATION, "the batch itself did not fit")
    if owner in LAYER_OWNERS and frame is not None:
        return from_oom(
            seen,
            oom,
            "activation-stack",
            Verdict.ACTIVATION,
            f"{owner} in {oom.stage} asked for the last piece ({frame.function}, {frame.file.rsplit('/', 1)[-1]}:{frame.line})",
        )
    if oom.stage in {Stage.FORWARD, Stage.BACKWARD, Stage.LOSS}:
        verdict = Verdict.LOGITS if oom.stage is Stage.LOSS else Verdict.ACTIVATION
        return from_oom(
            seen,
            oom,
            "logits-stack" if verdict is Verdict.LOGITS else "activation-stack",
            verdict,
            f"the {oom.stage} pass asked for the last piece",
        )
    return None
