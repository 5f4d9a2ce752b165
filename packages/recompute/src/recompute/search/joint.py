"""Parallel layout, micro-batch and recompute together: the fastest that fit a number of GPUs.

Best first and exact over its axes: a layout is tried in the order of a lower bound of its step time, and
the search ends when the bound of the next one is no better than the slowest of the answers kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recompute.config.choice import NO_RECOMPUTE, with_choice
from recompute.config.geometry import check_geometry
from recompute.config.gpus import DEFAULT_GPU, Gpu, find_gpu
from recompute.config.normalize import normalize, revision_of
from recompute.config.require import EXPLAIN, require_complete
from recompute.errors import ConfigError, RecomputeError
from recompute.model.tape import Link
from recompute.search.budget import Budget, budget_of
from recompute.search.cost import CostModel
from recompute.search.efficiency import EFFICIENCIES
from recompute.search.outcome import Judge, ranked
from recompute.search.reserved import allocator_of
from recompute.search.space import candidates, errors_of
from recompute.search.types import Outcome, Predicts, tokens_of_step
from recompute.timeline.static import microbatches_of

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.timeline.types import Prediction

MICRO_BATCHES = (1, 2, 4, 8)
CONTEXTS = (1, 2, 4, 8)
MAX_PIPELINE, MAX_CHUNKS = 64, 16


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Layout:
    """One point of the axes."""

    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    mbs: int
    last: int = 0
    """Layers of the last stage where the layers do not divide by the stages; 0: evenly."""

    def changes(self) -> tuple[str, ...]:
        """Return the layout as overrides."""
        chunks = "null" if self.vpp == 1 else str(self.vpp)
        return (
            f"model.tensor_model_parallel_size={self.tp}",
            f"model.sequence_parallel={'true' if self.tp > 1 else 'false'}",
            f"model.pipeline_model_parallel_size={self.pp}",
            f"model.virtual_pipeline_model_parallel_size={chunks}",
            *((f"model.num_layers_in_last_pipeline_stage={self.last}",) if self.last else ()),
            f"model.context_parallel_size={self.cp}",
            *((f"model.expert_model_parallel_size={self.ep}",) if self.ep > 1 else ()),
            f"train.micro_batch_size={self.mbs}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRow:
    """One layout with the cheapest recompute that fits it."""

    layout: Layout
    outcome: Outcome
    step_seconds: float
    tokens_per_second: float
    """A second and GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """The answer, fastest first, and how much of the space was looked at."""

    rows: tuple[JointRow, ...]
    layouts: int
    """Valid layouts."""
    too_large: int
    """Left out because parameters and states alone do not fit."""
    predicted: int
    """Predicted; the others cannot be faster than the rows."""


def joint(
    job: JobConfig,
    budget: str | int | None = None,
    *,
    gpu: str | None = None,
    margin: str | float | None = None,
    top: int = 10,
    predictor_of: Callable[[JobConfig], Predicts] | None = None,
) -> Joint:
    """Rank layouts of a job by predicted throughput under memory.

    Args:
        job: A complete job with ``hardware.num_gpus`` and ``train.global_batch_size``; what it says
            about its own layout is replaced, the rest stays.
        budget: As for :func:`recompute.search.plan.plan`.
        gpu: As there.
        margin: As there.
        top: How many layouts to return.
        predictor_of: What predicts.

    Raises:
        ConfigError: ``missing-field``, or the job or the arguments do not say enough.
    """
    require_complete(job, EXPLAIN)
    for section, name in (("hardware", "num_gpus"), ("train", "global_batch_size")):
        if getattr(getattr(job, section), name) is None:
            raise ConfigError(
                "missing-field",
                f"the joint search needs {section}.{name}",
                hint=f"add {section}.{name}=VALUE to the command",
            )
    limit = budget_of(job, budget, gpu=gpu, margin=margin)
    rates = find_gpu(gpu or job.hardware.gpu or DEFAULT_GPU)
    search = _Search(_bare(job), limit, rates, top, predictor_of or _predictor)
    return search.run()


def _predictor(job: JobConfig) -> Predicts:
    from recompute.timeline.predict import Predictor

    return Predictor(job)


def _bare(job: JobConfig) -> JobConfig:
    """Drop what belongs to the job's own layout and recompute."""
    model = replace(
        with_choice(job, NO_RECOMPUTE).model,
        num_layers_in_first_pipeline_stage=None,
        num_layers_in_last_pipeline_stage=None,
        pipeline_model_parallel_layout=None,
        distribute_saved_activations=False,
    )
    return replace(job, model=model)


def at_layout(job: JobConfig, layout: Layout) -> JobConfig:
    """Return the job at a layout."""
    model = replace(
        job.model,
        tensor_model_parallel_size=layout.tp,
        sequence_parallel=layout.tp > 1,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=None if layout.vpp == 1 else layout.vpp,
        num_layers_in_last_pipeline_stage=layout.last or None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        tp_comm_overlap=job.model.tp_comm_overlap and layout.tp > 1,
    )
    return replace(job, model=model, train=replace(job.train, micro_batch_size=layout.mbs))


class _Search:
    """One best-first search."""

    def __init__(
        self,
        job: JobConfig,
        limit: Budget,
        rates: Gpu,
        top: int,
        make: Callable[[JobConfig], Predicts],
    ) -> None:
        self.job, self.limit, self.rates, self.top, self.make = job, limit, rates, top, make
        self.revision, _ = revision_of(job)
        self.allocator = allocator_of(job.environment)
        self.errors = errors_of(job, self.revision)
        self.rows: list[JointRow] = []
        self.layouts = self.too_large = self.predicted = 0

    def run(self) -> Joint:
        """Search until no layout that is left can be faster than the rows kept."""
        queue = sorted(self._bounded())
        for bound, layout in queue:
            if len(self.rows) == self.top and bound >= self.rows[-1].step_seconds:
                break
            self._try(layout)
        return Joint(
            rows=tuple(self.rows),
            layouts=self.layouts,
            too_large=self.too_large,
            predicted=self.predicted,
        )

    def _bounded(self) -> Iterator[tuple[float, Layout]]:
        """Yield every valid layout whose states fit, with a lower bound of its step time."""
        for tp, pp, ep in itertools.product(*_structure(self.job, self.rates)):
            members = list(self._members(tp, pp, ep))
            self.layouts += len(members)
            if not members:
                continue
            work = self._least_work(members[0])
            if work is None:
                self.too_large += len(members)
                continue
            for layout in members:
                count = microbatches_of(at_layout(self.job, layout))
                yield work * (1.0 + (pp - 1) / (count * layout.vpp)), layout

    def _members(self, tp: int, pp: int, ep: int) -> Iterator[Layout]:
        chunks = range(1, MAX_CHUNKS + 1) if pp > 1 else (1,)
        last = _uneven(self.job, pp)
        for vpp, cp, mbs in itertools.product(chunks, CONTEXTS, MICRO_BATCHES):
            layout = Layout(tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, mbs=mbs, last=last)
            if (last == 0 or vpp == 1) and self._valid(layout):
                yield layout

    def _valid(self, layout: Layout) -> bool:
        job = at_layout(self.job, layout)
        world, batch = job.hardware.num_gpus or 1, job.train.global_batch_size or 1
        replica = layout.tp * layout.pp * layout.cp
        if world % replica or batch % (world // replica * layout.mbs):
            return False
        try:
            check_geometry(job)
        except ConfigError:
            return False
        # interleaving runs micro-batches in groups of PP (megatron/core/pipeline_parallel/schedules.py)
        return layout.vpp == 1 or microbatches_of(job) % layout.pp == 0

    def _least_work(self, layout: Layout) -> float | None:
        """Return the average stage's time at its best, or nothing when states alone do not fit.

        At its best: large GEMMs, no launches, nothing sent over the context group. What a step sends
        over the tensor and expert groups depends on its tokens only, and states depend neither on the
        micro-batch nor on how ranks are split between data and context.
        """
        job = normalize(at_layout(self.job, layout))
        try:
            prediction = self.make(job).predict(NO_RECOMPUTE)
        except RecomputeError:
            return None
        allowed = self.limit.allowed_peak(self.allocator)
        if max(rank.static.total for rank in prediction.ranks) > allowed:
            return None
        ideal = replace(EFFICIENCIES[self.rates.architecture], gemm_edge=0, launch_seconds=0.0)
        cost = CostModel(job, self.rates, ideal)
        return _average_work(cost, prediction)

    def _try(self, layout: Layout) -> None:
        """Plan one layout and keep it if it is among the fastest."""
        self.predicted += 1
        job = normalize(at_layout(self.job, layout))
        if errors_of(job, self.revision) - self.errors:
            return
        predictor = self.make(job)
        control = predictor.predict(NO_RECOMPUTE)
        cost = CostModel(job, self.rates)
        seconds = cost.step_seconds(control)
        if len(self.rows) == self.top and seconds >= self.rows[-1].step_seconds:
            return
        judge = Judge(predictor, cost, self.limit, control)
        outcome: Outcome | None = judge.judge(control)
        if outcome is not None and not outcome.fits:
            space = candidates(job, self.revision, predictor.active_layers())
            outcomes = ranked(judge.outcome(choice) for choice in space)
            outcome = outcomes[0] if outcomes[0].fits else None
        if outcome is None:
            return
        step = seconds * (1.0 + outcome.step_time_overhead)
        self.rows.append(
            JointRow(
                layout=layout,
                outcome=outcome,
                step_seconds=step,
                tokens_per_second=tokens_of_step(job) / step / (job.hardware.num_gpus or 1),
            )
        )
        self.rows.sort(key=lambda row: (row.step_seconds, row.layout))
        del self.rows[self.top :]


def _uneven(job: JobConfig, pp: int) -> int:
    """Return the layers of a short last stage, or 0 when the layers divide or that would leave none."""
    model = job.model
    counted = model.account_for_embedding_in_pipeline_split + (
        model.account_for_loss_in_pipeline_split
    )
    if counted or model.num_layers % pp == 0:
        return 0
    each = -(-model.num_layers // pp)
    return max(model.num_layers - each * (pp - 1), 0)


def _average_work(cost: CostModel, prediction: Prediction) -> float:
    total = 0.0
    for rank in prediction.ranks:
        sent = tuple(item for item in rank.step_work.comm if item[0] is not Link.CONTEXT)
        work = replace(rank.step_work, comm=sent)
        total += cost.seconds(work) + cost.seconds(work, backward=True)
    return total / len(prediction.ranks)


def _structure(job: JobConfig, rates: Gpu) -> tuple[list[int], list[int], list[int]]:
    """Return the values of TP, PP and EP to try."""
    world = job.hardware.num_gpus or 1
    powers = [1 << exponent for exponent in range(11)]
    tensor = [size for size in powers if size <= min(rates.domain, 16) and world % size == 0]
    stages = [size for size in range(1, min(MAX_PIPELINE, world) + 1) if world % size == 0]
    experts = job.model.num_moe_experts or 1
    spread = [size for size in powers if size <= world and experts % size == 0]
    return tensor, stages, spread
