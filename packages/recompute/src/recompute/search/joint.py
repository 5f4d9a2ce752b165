"""Parallel layout, micro-batch and recompute together: the fastest that fit a number of GPUs.

Best first and exact over its axes: a layout is tried in the order of a lower bound of its step time, and
the search ends when the bound of the next one is no better than the slowest of the answers kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from recompute.config.choice import NO_RECOMPUTE, with_choice
from recompute.config.geometry import check_geometry
from recompute.config.gpus import DEFAULT_GPU, Gpu, find_gpu
from recompute.config.normalize import normalize, revision_of
from recompute.config.require import EXPLAIN, require_complete
from recompute.errors import ConfigError, RecomputeError
from recompute.model.layer import layer_kinds
from recompute.model.tape import Link
from recompute.search.budget import Budget, budget_of
from recompute.search.cheapest import cheapest
from recompute.search.cost import CostModel
from recompute.search.efficiency import EFFICIENCIES
from recompute.search.outcome import Judge, new_predictor
from recompute.search.plan import HOST_BOUND, search_assumptions
from recompute.search.reserved import allocator_of
from recompute.search.space import errors_of, every_choice, is_legal, known_errors
from recompute.search.types import Outcome, Predicts, tokens_of_step
from recompute.search.workers import IN_LINE, Workers

if TYPE_CHECKING:
    from recompute.config.revision import Revision
    from recompute.config.schema import Assumption, JobConfig
    from recompute.timeline.types import Prediction

MICRO_BATCHES = (1, 2, 4, 8)
CONTEXTS = (1, 2, 4, 8)
MAX_PIPELINE, MAX_CHUNKS = 64, 16
SLACK = 1e-6
"""Overhead beyond a limit up to which a choice is still looked at: far more than rounding, far less than
an answer."""


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
    budget: Budget
    """What a rank of this layout may take."""
    assumptions: tuple[Assumption, ...] = ()
    """What its prediction rests on."""


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
    budget: Budget
    """Of the fastest row; without rows, at the job's own layout."""
    assumptions: tuple[Assumption, ...]
    """Of the search and of its rows, each once."""


def joint(
    job: JobConfig,
    budget: str | int | None = None,
    *,
    gpu: str | None = None,
    margin: str | float | None = None,
    top: int = 10,
    predictor_of: Callable[[JobConfig], Predicts] | None = None,
    workers: Workers = IN_LINE,
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
        workers: Who does the parts; the answer does not depend on it.

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
    limit_of = partial(budget_of, budget=budget, gpu=gpu, margin=margin)
    limit = limit_of(job)
    rates = find_gpu(gpu or job.hardware.gpu or DEFAULT_GPU)
    bare, (revision, _) = _bare(job), revision_of(job)
    terms = _Terms(
        job=bare,
        limit_of=limit_of,
        rates=rates,
        revision=revision,
        errors=errors_of(bare, revision),
        make=predictor_of or new_predictor,
    )
    answer = _search(terms, top, workers)
    limits = tuple(row.budget for row in answer.rows) or (limit,)
    said = (
        *(each for row in answer.rows for each in row.assumptions),
        *(() if answer.rows else job.assumptions),
        *search_assumptions(job, limits, gpu, rates),
    )
    assumptions = tuple({each.id: each for each in said}.values())
    return replace(answer, budget=limits[0], assumptions=assumptions)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What every part of one search needs."""

    job: JobConfig
    limit_of: Callable[[JobConfig], Budget]
    """What a rank may take; of a device, what is kept for memory outside torch depends on the layout."""
    rates: Gpu
    revision: Revision
    errors: frozenset[str]
    """Rules that the job breaks whatever its layout."""
    make: Callable[[JobConfig], Predicts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structure:
    """Layouts whose parameters and states are the same."""

    terms: _Terms
    tp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Valid layouts of one structure with a lower bound of their step time; none when too large."""

    layouts: int
    bounds: tuple[tuple[float, Layout], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One layout to plan."""

    terms: _Terms
    bound: float
    layout: Layout
    below: float
    """Step time from which it is of no use, as known when somebody was free to plan it."""


def _search(terms: _Terms, top: int, workers: Workers) -> Joint:
    """Search until no layout that is left can be faster than the rows kept."""
    structures = [
        _Structure(terms=terms, tp=tp, pp=pp, ep=ep)
        for tp, pp, ep in itertools.product(*_structure(terms.job, terms.rates))
    ]
    bounded = workers.ordered(
        _bounds_of, structures, what="groups of layouts bounded", of=len(structures)
    )
    found = [bounds for _, bounds in bounded]
    queue = sorted(pair for bounds in found for pair in bounds.bounds)
    kept = _Kept(top)
    predicted = 0
    trials = (
        _Trial(terms=terms, bound=bound, layout=layout, below=kept.below) for bound, layout in queue
    )
    for trial, row in workers.ordered(_tried, trials, what="layouts tried", of=len(queue)):
        if trial.bound >= kept.below:
            break
        predicted += 1
        kept.offer(row)
    return Joint(
        rows=tuple(kept.rows),
        layouts=sum(bounds.layouts for bounds in found),
        too_large=sum(bounds.layouts for bounds in found if not bounds.bounds),
        predicted=predicted,
        budget=terms.limit_of(terms.job),
        assumptions=(),
    )


class _Kept:
    """The fastest rows so far."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.rows: list[JointRow] = []

    @property
    def below(self) -> float:
        """Step time that a further row has to beat."""
        return self.rows[-1].step_seconds if len(self.rows) == self.top else math.inf

    def offer(self, row: JointRow | None) -> None:
        """Keep a row if it is among the fastest; of equal ones those that were found first."""
        if row is None or row.step_seconds >= self.below:
            return
        self.rows.append(row)
        self.rows.sort(key=lambda kept: (kept.step_seconds, kept.layout))
        del self.rows[self.top :]


def _bounds_of(structure: _Structure) -> _Bounds:
    """Bound the layouts of a structure: the slowest stage at its best, then fill and drain."""
    terms = structure.terms
    members = list(_members(structure))
    times = _least_times(terms, members) if members else None
    if times is None:
        return _Bounds(layouts=len(members), bounds=())
    slowest = sum(times) / len(times)
    if _are_split_alike(terms.job, members):
        slowest = max(times)
    others = sum(times) - slowest
    return _Bounds(
        layouts=len(members),
        bounds=tuple(
            (slowest + others / (_microbatches(terms.job, m) * m.vpp), m) for m in members
        ),
    )


def _members(structure: _Structure) -> Iterator[Layout]:
    """Yield the valid layouts of a structure.

    Of what :func:`check_geometry` asks, only the division of the global batch hangs on the micro-batch.
    """
    job, pp = structure.terms.job, structure.pp
    chunks = range(1, MAX_CHUNKS + 1) if pp > 1 else (1,)
    last = _uneven(job, pp)
    for vpp, cp in itertools.product(chunks if last == 0 else (1,), CONTEXTS):
        layouts = [
            Layout(tp=structure.tp, pp=pp, vpp=vpp, cp=cp, ep=structure.ep, mbs=mbs, last=last)
            for mbs in MICRO_BATCHES
        ]
        divided = [layout for layout in layouts if _divides_batch(job, layout)]
        if divided and _is_valid(job, divided[0]):
            yield from divided


def _divides_batch(job: JobConfig, layout: Layout) -> bool:
    """Say whether the GPUs make whole replicas, and the global batch whole micro-batches of each."""
    world, batch = job.hardware.num_gpus or 1, job.train.global_batch_size or 1
    replica = layout.tp * layout.pp * layout.cp
    if world % replica or batch % (world // replica * layout.mbs):
        return False
    # interleaving runs micro-batches in groups of PP (megatron/core/pipeline_parallel/schedules.py)
    return layout.vpp == 1 or _microbatches(job, layout) % layout.pp == 0


def _is_valid(job: JobConfig, layout: Layout) -> bool:
    try:
        check_geometry(at_layout(job, layout))
    except ConfigError:
        return False
    return True


def _microbatches(job: JobConfig, layout: Layout) -> int:
    """Return what :func:`microbatches_of` says of the job at a layout."""
    data = (job.hardware.num_gpus or 1) // (layout.tp * layout.pp * layout.cp)
    return max(1, (job.train.global_batch_size or 1) // (layout.mbs * data))


def _least_times(terms: _Terms, members: Sequence[Layout]) -> list[float] | None:
    """Return the stages' times at their best, or nothing when states alone do not fit in any layout.

    At its best: GEMMs with the rows of the largest micro-batch and no context group, no launches,
    nothing sent over the context group or between stages. What a step sends over the tensor and expert
    groups depends on its tokens only, and states depend neither on the micro-batch nor on how ranks are
    split between data and context.
    """
    layout = members[0]
    job = normalize(at_layout(terms.job, layout))
    try:
        prediction = terms.make(job).predict(NO_RECOMPUTE)
    except RecomputeError:
        return None
    allocator = allocator_of(job.environment)
    by_context = {member.cp: member for member in members}.values()  # the rest keeps as much free
    limits = [terms.limit_of(at_layout(terms.job, member)) for member in by_context]
    allowed = max(limit.allowed_peak(allocator) for limit in limits)
    if max(rank.static.total for rank in prediction.ranks) > allowed:
        return None
    ideal = replace(EFFICIENCIES[terms.rates.architecture], launch_seconds=0.0)
    largest = replace(layout, mbs=max(MICRO_BATCHES), cp=min(CONTEXTS))
    cost = CostModel(normalize(at_layout(terms.job, largest)), terms.rates, ideal)
    return _stage_times(cost, prediction)


def _tried(trial: _Trial) -> JointRow | None:
    """Plan one layout; nothing when it does not fit or is no faster than ``below``."""
    terms = trial.terms
    job = normalize(at_layout(terms.job, trial.layout))
    if errors_of(job, terms.revision) - terms.errors:
        return None
    predictor = terms.make(job)
    control = predictor.predict(NO_RECOMPUTE)
    cost = CostModel(job, terms.rates)
    seconds = cost.step_seconds(control)
    if seconds >= trial.below:
        return None
    limit = terms.limit_of(job)
    judge = Judge(predictor, cost, limit, control)
    outcome: Outcome | None = judge.judge(control)
    if outcome is not None and not outcome.fits:
        known = known_errors(job, terms.revision)
        outcome = cheapest(
            judge,
            every_choice(job, predictor.active_layers()),
            lambda choice: is_legal(job, choice, terms.revision, known),
            below=trial.below / seconds - 1.0 + SLACK,
        )
    if outcome is None:
        return None
    step = seconds * (1.0 + outcome.step_time_overhead)
    return JointRow(
        layout=trial.layout,
        outcome=outcome,
        step_seconds=step,
        tokens_per_second=tokens_of_step(job) / step / (job.hardware.num_gpus or 1),
        budget=limit,
        assumptions=(
            *job.assumptions,
            *control.assumptions,
            *((HOST_BOUND,) if cost.is_host_bound(control) else ()),
        ),
    )


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


def _are_split_alike(job: JobConfig, members: Sequence[Layout]) -> bool:
    """Say whether a stage does the same work in all layouts, however many chunks it has."""
    model = job.model
    counted = model.account_for_embedding_in_pipeline_split + (
        model.account_for_loss_in_pipeline_split
    )
    same = not counted and len(set(layer_kinds(model))) == 1
    return same or len({layout.vpp for layout in members}) == 1


def _stage_times(cost: CostModel, prediction: Prediction) -> list[float]:
    times = []
    for rank in prediction.ranks:
        sent = tuple(item for item in rank.step_work.comm if item[0] is not Link.CONTEXT)
        work = replace(rank.step_work, comm=sent)
        times.append(cost.seconds(work) + cost.seconds(work, backward=True))
    return times


def _structure(job: JobConfig, rates: Gpu) -> tuple[list[int], list[int], list[int]]:
    """Return the values of TP, PP and EP to try."""
    world = job.hardware.num_gpus or 1
    powers = [1 << exponent for exponent in range(11)]
    tensor = [size for size in powers if size <= min(rates.domain, 16) and world % size == 0]
    stages = [size for size in range(1, min(MAX_PIPELINE, world) + 1) if world % size == 0]
    experts = job.model.num_moe_experts or 1
    spread = [size for size in powers if size <= world and experts % size == 0]
    return tensor, stages, spread
