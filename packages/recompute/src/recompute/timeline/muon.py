"""Optimizer states under Muon: matrices have one moment, everything else Adam's two.

Sources: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/optimizer/emerging_optimizers.py
(``_is_nonlinear_or_embedding``: what goes to Adam), megatron/core/optimizer/layer_wise_optimizer.py
(``LayerWiseDistributedOptimizer``: which rank owns what).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from recompute.config.schema import JobConfig
from recompute.config.versions import core_at_least
from recompute.model.tape import Op, OpClass

MOMENTS: Final = {"muon": 4, "dist_muon": 4, "adaptive_muon": 8}
"""Optimizer -> bytes of a matrix element's FP32 moments."""

ADAM_MOMENTS: Final = 8

TABLES: Final = frozenset(("output_layer", "embedding.word_embeddings"))
"""Operations whose matrices are tables of the vocabulary: Adam's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One parameter tensor of a rank."""

    elements: int
    matrix: bool
    expert: bool


def uses_muon(job: JobConfig) -> bool:
    """Say whether the job's optimizer is one of the Muon family."""
    return job.optimizer is not None and job.optimizer.optimizer in MOMENTS


def muon_states(job: JobConfig, parts: Sequence[Part], shards: tuple[int, int], dtype: int) -> int:
    """Return the bytes of master copies and moments on the rank that holds most.

    Args:
        job: A job whose optimizer is one of :data:`MOMENTS`.
        parts: The rank's parameters.
        shards: Ranks that share the dense and the routed experts' states; 1 and 1 where they do not.
        dtype: Bytes of one parameter element.
    """
    assert job.optimizer is not None
    moments, master = MOMENTS[job.optimizer.optimizer], 4 if dtype < 4 else 0

    def size(part: Part) -> int:
        return part.elements * (master + (moments if part.matrix else ADAM_MOMENTS))

    ordered = sorted(parts, key=lambda part: part.elements)
    groups = [
        ([size(p) for p in ordered if p.expert is expert], count)
        for expert, count in zip((False, True), shards, strict=True)
    ]
    if _packed(job):
        return sum(-(-sum(sizes) // count) for sizes, count in groups)
    return sum(_heaviest(sizes, count) for sizes, count in groups)


def parts_of(ops: Sequence[Op], dtype: int) -> Iterator[Part]:
    """Yield the parameter tensors of some operations, biases with the rest."""
    for op in ops:
        total = op.weight_bytes // dtype
        linear = op.kind in {OpClass.GEMM, OpClass.ROUTING} and op.name not in TABLES
        width, height = op.widths
        matrices = min(op.weights * width * height or total, total) if linear else 0
        for _ in range(op.weights if matrices else 0):
            yield Part(elements=matrices // op.weights, matrix=True, expert=op.expert)
        if total > matrices:
            yield Part(elements=total - matrices, matrix=False, expert=op.expert)


def _packed(job: JobConfig) -> bool:
    """Say whether shards are packed evenly (from core 0.18 on, unless switched off)."""
    assert job.optimizer is not None
    return core_at_least(job, (0, 18)) and job.optimizer.use_layer_wise_param_layout


def _heaviest(sizes: Sequence[int], ranks: int) -> int:
    """Deal whole tensors, the smallest first, over the ranks and back; return the heaviest hand."""
    hands = [0] * ranks
    order = [*range(ranks), *reversed(range(ranks))]
    for index, size in enumerate(sizes):
        hands[order[index % len(order)]] += size
    return max(hands)
