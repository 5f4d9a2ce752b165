"""What two overlapped micro-batches, and weight gradients that wait, may add: a bound for the range.

``overlap_moe_expert_parallel_comm`` runs the forward of one micro-batch through the backward of another,
layer by layer; the extra warm-up micro-batch of its schedule is the one that the pair's forward stands
for, so the micro-batches in flight are those of the plain schedule. What is new: while a layer goes back,
its partner's layer already holds what it saves, and where layers differ, what the forward has filled and
what the backward has freed are not the same. ``delay_wgrad_compute`` keeps the inputs and output gradients
of the linears before the dispatch, or of those after it, until that part's backward is over.

Sources: NVIDIA/Megatron-LM core_v0.19.0 (as in core_v0.16.0)
megatron/core/models/common/model_chunk_schedule_plan.py ``TransformerLayerSchedulePlan.run`` and
``TransformerModelChunkSchedulePlan.run`` (the order of the parts), megatron/core/pipeline_parallel/
combined_1f1b.py and schedules.py ``get_pp_rank_microbatches`` (the extra warm-up);
NVIDIA/TransformerEngine v2.18 transformer_engine/pytorch/module/_common.py ``WeightGradStore``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from recompute.config.schema import JobConfig
from recompute.model.tape import OpClass, Tape
from recompute.timeline.units_of_work import Unit

_ENDS: Final = frozenset({"embedding", "final_norm", "head"})


def overlap_bound(
    job: JobConfig, microbatches: int, chunks: Sequence[Sequence[Unit]], tapes: Iterable[Tape]
) -> int:
    """Return the most bytes that a rank may hold beyond the plain schedule's peak.

    Args:
        job: The job.
        microbatches: Of one step; a single one has no partner.
        chunks: The rank's chunks as units, ends included.
        tapes: Those of its layers.
    """
    if not job.model.overlap_moe_expert_parallel_comm:
        return 0
    found = 0
    if microbatches > 1:
        found = max(
            (paired_bound(ahead, back) for ahead in chunks for back in chunks if ahead and back),
            default=0,
        )
    if job.model.delay_wgrad_compute:
        found += max((waiting_bound(tape) for tape in tapes), default=0)
    return found


def paired_bound(ahead: Sequence[Unit], back: Sequence[Unit]) -> int:
    """Return how far a backward with a forward running through it may exceed the backward alone.

    Args:
        ahead: The chunk that runs forward.
        back: The chunk that runs backward; its head goes back before the first pair.
    """
    forward = [unit for unit in ahead if unit.name not in _ENDS]
    filled = sum(unit.saved for unit in ahead if unit.name == "embedding")
    freed, alone, both = 0, [], []
    for unit in reversed(back):
        high = unit.backward_peak - unit.saved - freed
        alone.append(high)
        freed += unit.saved
        if unit.name in _ENDS or not forward:
            both.append(high + filled)
            continue
        partner = forward.pop(0)
        both.append(high + filled + max(partner.forward_peak, partner.saved))
        filled += partner.saved
    return max(0, max(both) - max(alone))


def waiting_bound(tape: Tape) -> int:
    """Return the bytes of inputs and output gradients of the linears that wait together.

    The part before the dispatch and the part after it run their weight gradients one after the other.
    """
    sizes = {tensor.name: tensor.size for tensor in tape.inputs}
    before = after = 0
    for op in tape.ops:
        sizes |= {tensor.name: tensor.size for tensor in (*op.writes, *op.keeps)}
        if op.kind is not OpClass.GEMM or not op.weight_bytes:
            continue
        held = sum(sizes.get(name, 0) for name in op.saves) + sum(t.size for t in op.writes)
        if op.name.startswith("mlp."):
            after += held
        else:
            before += held
    return max(before, after)
