"""Choose the cheapest recompute that fits every rank: enumerate, hold against the budget, rank.

The space of stock choices is small (some hundred), so it is enumerated whole and the answer is exact;
per-layer plans are a search of their own (:mod:`recompute.search.per_layer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from recompute.config.choice import NO_RECOMPUTE, choice_of
from recompute.config.gpus import DEFAULT_GPU, find_gpu
from recompute.config.normalize import normalize, revision_of
from recompute.config.require import EXPLAIN, PLAN, missing, require_complete
from recompute.config.schema import Assumption
from recompute.search.budget import Budget, Compared, budget_of
from recompute.search.cost import CostModel
from recompute.search.levers import cheaper_first
from recompute.search.outcome import Judge, control_of, new_predictor, ranked
from recompute.search.per_layer import best_per_layer
from recompute.search.reasons import per_layer_hint, reasons
from recompute.search.reserved import allocator_of
from recompute.search.space import candidates, known_errors
from recompute.search.types import Outcome, Plan, Predicts, Status
from recompute.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recompute.config.choice import RecomputeChoice
    from recompute.config.gpus import Gpu
    from recompute.config.schema import JobConfig
    from recompute.timeline.types import Prediction

HOST_BOUND = Assumption(
    id="host-bound",
    text="the host needs longer to launch this step than the GPU to run it: replays cost their "
    "launches, and step times are rough; a larger micro-batch or CUDA graphs change the ranking",
)

HINT_WORK = 4096
"""Layers of the model times layers of its longest stage up to which a plan also says, unasked, what a
per-layer plan would win; above, that search is worth asking for."""


def plan(
    job: JobConfig,
    budget: str | int | None = None,
    *,
    gpu: str | None = None,
    margin: str | float | None = None,
    per_layer: bool = False,
    details: bool = True,
    predictor_of: Callable[[JobConfig], Predicts] | None = None,
) -> Plan:
    """Choose what to recompute.

    Args:
        job: A complete job, as loaded; it is normalized here.
        budget: Allocated bytes that every rank may reach, or text such as ``76GiB``. Without it the
            memory of ``gpu`` or of the job's hardware is compared with what will be reserved.
        gpu: A GPU of the table, in place of ``hardware.gpu``.
        margin: Bytes or a fraction of the budget to keep free.
        per_layer: Also look for plans that recompute different boundaries in different layers.
        details: Also work out the reasons and the levers.
        predictor_of: What predicts; by default :class:`recompute.timeline.predict.Predictor`.

    Returns:
        The verdict, the choice, the whole ranking and the reasons.

    Raises:
        ConfigError: The job or the arguments do not say enough, or what they say is wrong.
        UnsupportedError: The job holds something that is not modelled.
    """
    if budget is None and gpu is None and missing(job, EXPLAIN):
        require_complete(job, PLAN)  # one line with everything, the GPU too
    require_complete(job, EXPLAIN)
    limit = budget_of(job, budget, gpu=gpu, margin=margin)
    find_gpu(gpu or job.hardware.gpu or DEFAULT_GPU)
    return answer(prepare(job, predictor_of), limit, gpu=gpu, per_layer=per_layer, details=details)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the answers for all budgets and GPUs share: the job, its predictor and its choices."""

    job: JobConfig
    """As loaded."""
    acted: JobConfig
    """Normalised."""
    make: Callable[[JobConfig], Predicts]
    predictor: Predicts
    control: Prediction
    space: tuple[RecomputeChoice, ...]
    known: frozenset[str]
    """Rules that the job breaks whatever it recomputes."""


def prepare(
    job: JobConfig, predictor_of: Callable[[JobConfig], Predicts] | None = None
) -> Prepared:
    """Work out what does not depend on the budget.

    Args:
        job: A complete job, as loaded.
        predictor_of: As for :func:`plan`.

    Raises:
        RecomputeError: As for :func:`plan`.
    """
    acted = normalize(job)
    revision, _ = revision_of(job)
    make = predictor_of or new_predictor
    predictor = make(acted)
    return Prepared(
        job=job,
        acted=acted,
        make=make,
        predictor=predictor,
        control=control_of(predictor),
        space=candidates(job, revision, predictor.active_layers()),
        known=known_errors(job, revision),
    )


def answer(
    ready: Prepared,
    limit: Budget,
    *,
    gpu: str | None = None,
    per_layer: bool = False,
    details: bool = True,
) -> Plan:
    """Choose what to recompute within one budget; arguments as for :func:`plan`."""
    job, acted, predictor = ready.job, ready.acted, ready.predictor
    rates = find_gpu(gpu or job.hardware.gpu or DEFAULT_GPU)
    cost, said = _calibrated(CostModel(acted, rates), predictor)
    judge = Judge(predictor, cost, limit, ready.control)
    plain = outcomes = ranked(judge.outcome(choice) for choice in ready.space)
    control = next(o for o in outcomes if o.choice == NO_RECOMPUTE)
    stock = _chosen(outcomes, control)
    wanted = not control.fits and (per_layer or (details and _is_small(predictor)))
    mixed = next(iter(best_per_layer(judge, outcomes)), None) if wanted else None
    if per_layer and mixed is not None:
        outcomes = ranked((mixed, *outcomes))
    chosen = _chosen(outcomes, control)
    why: tuple[str, ...] = ()
    if details:
        why = reasons(job, judge, outcomes, chosen, ready.known)
        why += () if per_layer else per_layer_hint(stock, mixed)
    return Plan(
        job=acted,
        status=_status(chosen, control),
        budget=limit,
        chosen=chosen,
        alternatives=outcomes,
        control=control,
        current=choice_of(job),
        closest=None if chosen is not None else _closest(outcomes),
        cheaper_first=cheaper_first(judge, plain, ready.make) if details else (),
        why=why,
        control_seconds=judge.cost.step_seconds(judge.control),
        assumptions=(
            *acted.assumptions,
            *judge.control.assumptions,
            *search_assumptions(job, (limit,), gpu, rates),
            *said,
            *((HOST_BOUND,) if judge.cost.is_host_bound(judge.control) else ()),
        ),
        stock=stock if per_layer else None,
    )


@runtime_checkable
class KnowsStep(Protocol):
    """A predictor that knows how long a step of a measured run took."""

    @property
    def measured_step(self) -> tuple[RecomputeChoice, float] | None:
        """What that run recomputed, and the seconds of its step."""
        ...


def _calibrated(cost: CostModel, predictor: Predicts) -> tuple[CostModel, tuple[Assumption, ...]]:
    """Scale step times to a measured one, where there is one, and say so."""
    step = predictor.measured_step if isinstance(predictor, KnowsStep) else None
    if step is None:
        return cost, ()
    choice, seconds = step
    factor = seconds / cost.step_seconds(predictor.predict(choice))
    text = (
        f"step times are {factor:.2f} times the predicted ones, since {choice.label()} took "
        f"{seconds:.3f} s; overheads keep their ratios"
    )
    scaled = CostModel(cost.job, cost.gpu, cost.efficiencies, scale=factor)
    return scaled, (Assumption(id="step-calibration", text=text),)


def _is_small(predictor: Predicts) -> bool:
    """Say whether a per-layer search takes a fraction of a second."""
    layers = [sum(len(chunk.layers) for chunk in stage.chunks) for stage in predictor.stages]
    chunks = max(len(stage.chunks) for stage in predictor.stages)
    return sum(layers) * max(layers) * chunks <= HINT_WORK


def _chosen(outcomes: tuple[Outcome, ...], control: Outcome) -> Outcome | None:
    """Return the first that fits; no recompute where it fits, whatever ties with it."""
    if control.fits:
        return control
    return next((outcome for outcome in outcomes if outcome.fits), None)


def _closest(outcomes: tuple[Outcome, ...]) -> Outcome:
    return min(outcomes, key=lambda o: 0 if o.breach is None else o.breach.over_bytes)


def _status(chosen: Outcome | None, control: Outcome) -> Status:
    if chosen is None:
        return Status.INFEASIBLE
    return Status.ALREADY_FITS if chosen.choice == control.choice else Status.PLANNED


def search_assumptions(
    job: JobConfig, limits: Sequence[Budget], gpu: str | None, rates: Gpu
) -> tuple[Assumption, ...]:
    """Say what an answer rests on besides the job and the memory model.

    Args:
        job: As it was asked about.
        limits: The budget, or one for each layout that was chosen.
        gpu: As the command names it.
        rates: Whose rates the step times use.
    """
    named = gpu is not None or job.hardware.gpu is not None
    text = f"step times use the rates of {rates.name}"
    text = f"{text} ({rates.source})" if named else f"no GPU is named: {text}"
    found = [
        Assumption(id="step-time-rates", text=text),
        Assumption(id="allocator", text=f"reserved memory: {allocator_of(job.environment).source}"),
    ]
    if limits[0].compared is Compared.RESERVED:
        kept = sorted({limit.margin_bytes for limit in limits})
        low = f"{format_gib(kept[0])} to " if len(kept) > 1 else ""
        by = ", by layout" if low else ""
        text = (
            f"{low}{format_gib(kept[-1])} are kept for memory outside torch: the CUDA context and "
            f"communication buffers{by}, or what --margin says"
        )
        found.append(Assumption(id="outside-torch", text=text))
    return tuple(found)
