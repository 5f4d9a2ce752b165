"""Changes that may be cheaper than any recompute: predicted on the job without recompute, never applied.

Each lever is a row: when it applies, which fields it changes, what it costs. Its effect is found by
predicting the changed job, so it is a bound on nothing but that job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from recompute.config.choice import NO_RECOMPUTE
from recompute.errors import RecomputeError
from recompute.rules.edits import apply, overrides_of
from recompute.search import lever_edits as edits
from recompute.search.reserved import CACHING, EXPANDABLE, allocator_of, reserved_range
from recompute.search.types import LeverResult, Predicts
from recompute.timeline.types import Prediction
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.rules.types import Edit
    from recompute.search.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change other than recompute."""

    name: str
    change: str
    edit: Callable[[edits.Before], Edit | None]
    """The fields to change; ``None`` where the job already does it or cannot."""
    why: str
    """What it removes and what it costs."""
    good: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a small dense job to which it applies (``section.field`` -> value)."""
    bad: Mapping[str, Any] = field(default_factory=dict)
    """The same with one difference that makes it not apply."""


LEVERS: Final[tuple[Lever, ...]] = (
    Lever(
        name="fused-activation",
        change="fuse the bias and the gated activation",
        edit=edits.fused_activation,
        why="the unfused activation keeps its two halves besides its input; the fused one keeps the "
        "input alone and is faster",
        good={"model.gated_linear_unit": True, "model.activation_func": "silu"},
        bad={
            "model.gated_linear_unit": True,
            "model.activation_func": "silu",
            "model.bias_activation_fusion": True,
        },
    ),
    Lever(
        name="fused-cross-entropy",
        change="use Transformer Engine's fused cross entropy",
        edit=edits.fused_cross_entropy,
        why="the loss writes its gradient over the logits and keeps no FP32 copy of them; it is "
        "faster",
        bad={
            "model.cross_entropy_loss_fusion": True,
            "model.cross_entropy_fusion_impl": "te",
        },
    ),
    Lever(
        name="expandable-segments",
        change="let the allocator map expandable segments",
        edit=edits.expandable_segments,
        why="allocated bytes stay, less is reserved beyond them",
        bad={"environment.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Lever(
        name="sequence-parallel",
        change="turn sequence parallelism on",
        edit=edits.sequence_parallel,
        why="norms, dropout and the residual stream are split over the tensor group; the same bytes "
        "travel",
        good={"model.tensor_model_parallel_size": 2, "hardware.num_gpus": 2},
        bad={},
    ),
    Lever(
        name="precision-aware-optimizer",
        change="use the precision-aware optimizer",
        edit=edits.precision_aware,
        why="master weights keep only the 16 bits that the parameters lack; the arithmetic stays",
        good={"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
        bad={},
    ),
    Lever(
        name="bf16-moments",
        change="keep Adam's moments in bf16",
        edit=edits.bf16_moments,
        why="half of the moments' bytes; this changes the numerics, so check the loss",
        good={"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
        bad={
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
            "optimizer.use_precision_aware_optimizer": True,
            "optimizer.exp_avg_dtype": "bf16",
            "optimizer.exp_avg_sq_dtype": "bf16",
        },
    ),
    Lever(
        name="bf16-gradients",
        change="accumulate and reduce gradients in bf16",
        edit=edits.bf16_gradients,
        why="half of the gradient buffer; this changes the numerics, most with many micro-batches",
        good={"ddp.grad_reduce_in_fp32": True},
        bad={},
    ),
    Lever(
        name="uneven-pipeline",
        change="give the hottest end of the pipeline fewer layers",
        edit=edits.uneven_pipeline,
        why="the embedding or the loss makes an end stage hold more than the others; the others take "
        "its layers",
        good={"model.pipeline_model_parallel_size": 2, "hardware.num_gpus": 2},
        bad={},
    ),
    Lever(
        name="smaller-micro-batch",
        change="halve the micro-batch",
        edit=edits.smaller_micro_batch,
        why="every activation halves and the global batch stays; kernels get smaller, so check the "
        "step time",
        good={"train.micro_batch_size": 2},
        bad={},
    ),
    Lever(
        name="offload-optimizer",
        change="keep optimizer states in host memory",
        edit=edits.offload_optimizer,
        why="the optimizer step then runs on the CPU and over the host link: slow for small global "
        "batches; needs as much host memory",
        good={"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
        bad={
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
            "optimizer.optimizer_cpu_offload": True,
        },
    ),
)
"""One row for each lever, those that cost nothing first."""


def cheaper_first(
    job: JobConfig, budget: Budget, control: Prediction, make: Callable[[JobConfig], Predicts]
) -> tuple[LeverResult, ...]:
    """Predict every lever that the job does not use yet and that helps.

    Args:
        job: The job; levers are measured on it without recompute.
        budget: For saying whether a lever is enough on its own.
        control: The job without recompute.
        make: Makes a predictor for a changed job.
    """
    results = (_result(lever, job, budget, control, make) for lever in LEVERS)
    return tuple(result for result in results if result is not None)


def _result(
    lever: Lever,
    job: JobConfig,
    budget: Budget,
    control: Prediction,
    make: Callable[[JobConfig], Predicts],
) -> LeverResult | None:
    edit = lever.edit(edits.Before(job, control))
    if edit is None:
        return None
    changed = apply(job, edit)
    before = control.hot.peak.peak_bytes
    after = _peak_after(lever, changed, control, make)
    if after is None:
        return None
    allocator = allocator_of(changed.environment)
    narrower = allocator is EXPANDABLE and allocator_of(job.environment) is CACHING
    if after >= before and not narrower:
        return None
    why = lever.why
    if narrower:
        high = reserved_range(before, CACHING)[1], reserved_range(before, EXPANDABLE)[1]
        why += f": at most {format_gib(high[1])} in place of {format_gib(high[0])}"
    return LeverResult(
        name=lever.name,
        change=lever.change,
        overrides=overrides_of(edit),
        peak_delta_bytes=after - before,
        fits=budget.over(after, allocator) <= 0,
        why=why,
    )


def _peak_after(
    lever: Lever, job: JobConfig, control: Prediction, make: Callable[[JobConfig], Predicts]
) -> int | None:
    """Return the highest peak of the changed job; ``None`` where it cannot be said."""
    if lever.edit is edits.expandable_segments:
        return control.hot.peak.peak_bytes
    if lever.edit is edits.offload_optimizer:
        return max(rank.peak.peak_bytes - rank.static.optimizer for rank in control.ranks)
    try:
        return make(job).predict(NO_RECOMPUTE).hot.peak.peak_bytes
    except RecomputeError:
        return None
