"""Changes that may be cheaper than any recompute: predicted on the job without recompute, never applied.

Each lever is a row: when it applies, which fields it changes, what it costs. Its effect is found by
predicting the changed job, so it is a bound on nothing but that job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.errors import RecomputeError
from recompute.rules.edits import apply, overrides_of
from recompute.search import lever_edits as edits
from recompute.search.cost import CostModel
from recompute.search.outcome import Judge
from recompute.search.reserved import CACHING, EXPANDABLE, allocator_of, reserved_range
from recompute.search.types import LeverResult, Outcome, Predicts
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.rules.types import Edit


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
        name="distributed-optimizer",
        change="shard the optimizer over the data-parallel ranks",
        edit=edits.distributed_optimizer,
        why="every rank keeps the states of its share of the parameters only; the same bytes travel, "
        "and the arithmetic stays",
        good={"hardware.num_gpus": 4},
        bad={},
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
        name="engine-masters",
        change="let Transformer Engine's Adam keep the master weights",
        edit=edits.engine_masters,
        why="an FP8 recipe that no layer uses makes Megatron Core keep whole FP32 masters and copy the "
        "gradients to FP32 in every step; without it the engine keeps the 16 bits that the parameters "
        "lack; the arithmetic stays",
        good={
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
            "optimizer.use_precision_aware_optimizer": True,
            "optimizer.fp8_recipe": "tensorwise",
        },
        bad={
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
            "optimizer.use_precision_aware_optimizer": True,
        },
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
    judge: Judge, outcomes: Sequence[Outcome], make: Callable[[JobConfig], Predicts]
) -> tuple[LeverResult, ...]:
    """Predict every lever that the job does not use yet and that helps.

    Args:
        judge: Predicts and prices the job as it is; levers are measured on it without recompute.
        outcomes: Of the stock choices for the job as it is. The choices that none of them beats are tried again with each
            lever, to say what it would leave to recompute.
        make: Makes a predictor for a changed job.
    """
    stock = [o for o in outcomes if not o.dominated and o.choice.per_layer is None]
    front = [o.choice for o in sorted(stock, key=lambda o: o.step_time_overhead)]
    results = (_result(lever, judge, front, make) for lever in LEVERS)
    return tuple(result for result in results if result is not None)


def _result(
    lever: Lever,
    judge: Judge,
    front: Sequence[RecomputeChoice],
    make: Callable[[JobConfig], Predicts],
) -> LeverResult | None:
    job = judge.predictor.job
    edit = lever.edit(edits.Before(job, judge.control))
    if edit is None:
        return None
    changed = apply(job, edit)
    before = judge.control.hot.peak.peak_bytes
    narrower = allocator_of(changed.environment) is not allocator_of(job.environment)
    outcomes = _outcomes(changed, judge, front, make)
    if not outcomes:
        return None
    after, fits = outcomes[0].peak_bytes, outcomes[0].fits
    fitting = [o for o in outcomes if o.fits]
    then = min(fitting, key=lambda o: o.step_time_overhead, default=None)
    if after >= before and not narrower:
        return None
    why = lever.why
    if narrower:
        high = reserved_range(before, CACHING)[1], reserved_range(before, EXPANDABLE)[1]
        why += f": at most {format_gib(high[1])} in place of {format_gib(high[0])}"
    return LeverResult(
        name=lever.name,
        change=lever.change,
        overrides=overrides_of(edit, job),
        peak_delta_bytes=after - before,
        fits=fits,
        then=then,
        why=why,
    )


def _outcomes(
    changed: JobConfig,
    judge: Judge,
    front: Sequence[RecomputeChoice],
    make: Callable[[JobConfig], Predicts],
) -> list[Outcome]:
    """Judge the changed job without recompute, then the choices of the front until one fits.

    Returns:
        Nothing where the changed job is not valid or not modelled.
    """
    try:
        predictor = make(changed)
        control = predictor.predict(NO_RECOMPUTE)
    except RecomputeError:
        return []
    cost = CostModel(changed, judge.cost.gpu, judge.cost.efficiencies, scale=judge.cost.scale)
    moved = Judge(predictor, cost, judge.budget, control)
    found = [moved.judge(control)]
    for choice in front:
        if any(outcome.fits for outcome in found):
            break
        if choice != NO_RECOMPUTE:
            found.append(moved.outcome(choice))
    return found
