"""Why a plan says what it says: the tensor group, the rank, the phase, and what is a close call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from recompute.config.choice import NO_RECOMPUTE, choice_of
from recompute.search.budget import Compared
from recompute.search.cost import MODEL_ERROR
from recompute.search.lever_edits import Before, distributed_optimizer
from recompute.search.reserved import AllocatorModel, allocator_of
from recompute.timeline.loads import HIGH_LOAD, may_be_uneven
from recompute.timeline.predict import MODEL_ERROR as MEMORY_ERROR
from recompute.timeline.static import parallelism_of
from recompute.timeline.types import Phase
from recompute.units import GIB, MIB, format_gib

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.search.outcome import Judge
    from recompute.search.types import Outcome
    from recompute.timeline.types import Prediction, RankPeak

STATIC_OWNERS = frozenset(
    {"parameters", "gradients", "optimizer states", "workspaces and batch", "FP32 gradient copy"}
)
"""Owners that no recompute can shrink."""

NEGLIGIBLE = 0.001
"""A label that lowers the peak by less than this fraction does nothing worth its time."""

STATIC_PHASES = frozenset({Phase.GRAD_SYNC, Phase.OPTIMIZER_INIT, Phase.OPTIMIZER_STEP})


def reasons(
    job: JobConfig,
    judge: Judge,
    outcomes: Sequence[Outcome],
    chosen: Outcome | None,
    known: frozenset[str],
) -> tuple[str, ...]:
    """Return the reasons, most important first; one sentence each.

    Args:
        job: As loaded, so that a list that was not given is still not given.
        judge: Predicts, prices and holds against the budget.
        outcomes: All of them, best first.
        chosen: The one that was chosen, if any fits.
        known: Rules that the job breaks whatever it recomputes.
    """
    control = next(outcome for outcome in outcomes if outcome.choice == NO_RECOMPUTE)
    found = list(_verdict(judge, outcomes, chosen, control))
    if control.fits:
        found += _present_setting(job, judge, control)
    found += _rejected(outcomes, chosen, control)
    found += _close_calls(judge, outcomes, chosen)
    if known:
        rules = ", ".join(sorted(known))
        found.append(f"the job breaks rules that no recompute choice mends: {rules}; see check")
    if job.model.cpu_offloading:
        found.append(
            "model.cpu_offloading excludes recompute, so that nothing else was tried: "
            "model.cpu_offloading=false plans without it"
        )
    return tuple(found)


def place(rank: tuple[tuple[str, int], ...], phase: Phase | str) -> str:
    """Write a rank and a phase: ``pp 0, backward``."""
    return ", ".join([*(f"{axis} {index}" for axis, index in rank), str(phase)])


def _verdict(
    judge: Judge, outcomes: Sequence[Outcome], chosen: Outcome | None, control: Outcome
) -> Iterator[str]:
    plain = judge.predictor.predict(NO_RECOMPUTE, composition=True)
    peak = f"{format_gib(control.peak_bytes)} at {place(plain.hot.rank, plain.hot.peak.phase)}"
    if control.breach is None:
        room = -judge.budget.over(control.peak_bytes, _allocator(judge), control.graph_pool_bytes)
        yield f"without recompute the peak is {peak}: it fits with {format_gib(room)} to spare"
        return
    over = format_gib(control.breach.over_bytes)
    yield f"without recompute the peak is {peak}: {over} over{_means(judge, control)}"
    yield f"there, {_largest(plain.hot)}"
    if chosen is not None:
        after = judge.predictor.predict(chosen.choice, composition=True)
        yield from _freed(plain, after, chosen)
        return
    yield from _infeasible(judge, outcomes)


def _means(judge: Judge, control: Outcome) -> str:
    """Say what is compared, where it is not the allocated peak itself."""
    if judge.budget.compared is Compared.ALLOCATED:
        return ""
    factor = _allocator(judge).high
    kept = format_gib(judge.budget.margin_bytes)
    pools = ""
    if control.graph_pool_bytes:
        pools = f", CUDA graph pools up to {format_gib(control.graph_pool_bytes)} more"
    return f" (reserved up to {factor:.3f} x that{pools}, and {kept} stay outside torch)"


def _present_setting(job: JobConfig, judge: Judge, control: Outcome) -> Iterator[str]:
    """Say what the job's present recompute costs for nothing."""
    present = choice_of(job)
    if present == NO_RECOMPUTE:
        return
    outcome = judge.outcome(present)
    delta = (outcome.peak_bytes - control.peak_bytes) / GIB
    effect = (
        f"costs {outcome.step_time_overhead:+.1%} step time and moves the peak by {delta:+.2f} GiB"
    )
    if job.model.recompute_modules is None and present.recompute_modules:
        yield (
            f"recompute_modules is not set, which Megatron reads as {present.label()}: this {effect}; "
            "set it to []"
        )
        return
    yield f"the job's present {present.label()} {effect}: remove it"


def _largest(rank: RankPeak, count: int = 4) -> str:
    """Name what holds most at a peak."""
    owners = sorted(rank.alive_at_peak, key=lambda o: -o.bytes)[:count]
    return "most is held by " + ", ".join(f"{o.owner} {format_gib(o.bytes)}" for o in owners)


def _freed(plain: Prediction, after: Prediction, chosen: Outcome) -> Iterator[str]:
    """Say which tensor groups a choice removes on the control's hot rank, and where the peak goes."""
    before = {o.owner: o.bytes for o in plain.hot.alive_at_peak}
    same = next((r for r in after.ranks if r.rank == plain.hot.rank), after.hot)
    left = {o.owner: o.bytes for o in same.alive_at_peak}
    gone = {
        owner: size - left.get(owner, 0)
        for owner, size in before.items()
        if owner not in STATIC_OWNERS
    }
    top = sorted((i for i in gone.items() if i[1] > 0), key=lambda i: (-i[1], i[0]))[:3]
    parts = ", ".join(f"{owner} {format_gib(size)}" for owner, size in top)
    what = f"{chosen.choice.label()} frees there {parts}" if top else chosen.choice.label()
    where = place(after.hot.rank, after.hot.peak.phase)
    yield (
        f"{what}; the peak becomes {format_gib(chosen.peak_bytes)} at {where}, for "
        f"{chosen.step_time_overhead:+.1%} step time"
    )
    if after.hot.peak.phase in STATIC_PHASES:
        yield f"the peak is now {after.hot.peak.phase}: parameters and states, no more to recompute"


def _infeasible(judge: Judge, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Say what breaks the closest choice and what would have to shrink."""
    closest = min(outcomes, key=lambda o: 0 if o.breach is None else o.breach.over_bytes)
    if closest.breach is None:
        return
    hot = judge.predictor.predict(closest.choice, composition=True).hot
    over = format_gib(closest.breach.over_bytes)
    yield (
        f"nothing fits; the closest is {closest.choice.label()}, {over} over at "
        f"{place(closest.breach.rank, closest.breach.phase)}"
    )
    static = hot.static
    shares = (
        ("parameters", static.parameters),
        ("gradients", static.gradients),
        ("optimizer states", static.optimizer),
        ("everything else", hot.activation_bytes_at_peak + static.other),
    )
    named = ", ".join(f"{name} {format_gib(size)}" for name, size in shares)
    allowed = judge.budget.allowed_peak(_allocator(judge), closest.graph_pool_bytes)
    shrink = format_gib(max(0, hot.peak.peak_bytes - allowed))
    yield f"there: {named}; together they have to shrink by {shrink}"
    if static.total > allowed:
        yield (
            f"parameters, gradients and states alone are {format_gib(static.total)}: more shards "
            "or a smaller share per rank, not recompute, is what this needs"
        )
    job = judge.predictor.job
    if distributed_optimizer(Before(job, judge.control)) is not None:
        shards = parallelism_of(job).dense_shards
        yield (
            f"the distributed optimizer is off: it would leave 1/{shards} of the optimizer states on "
            "each rank, at no cost"
        )


def _rejected(
    outcomes: Sequence[Outcome], chosen: Outcome | None, control: Outcome
) -> Iterator[str]:
    """Name single labels that cost time and free nothing."""
    for outcome in outcomes:
        labels = outcome.choice.recompute_modules
        if outcome == chosen or len(labels) != 1 or outcome.choice.per_layer is not None:
            continue
        delta = outcome.peak_bytes - control.peak_bytes
        if delta > 0:
            yield (
                f"{labels[0]} is worse than none here: the peak rises by {format_gib(delta)} and "
                f"the step by {outcome.step_time_overhead:.1%}"
            )
        elif delta == 0:
            yield f"{labels[0]} does not lower the peak: what it frees is not there at that moment"
        elif -delta <= NEGLIGIBLE * control.peak_bytes:
            yield (
                f"{labels[0]} lowers the peak by {-delta / MIB:.0f} MiB only, for "
                f"{outcome.step_time_overhead:+.1%} step time"
            )


def per_layer_hint(stock: Outcome | None, mixed: Outcome | None) -> tuple[str, ...]:
    """Say what a per-layer plan would win, where it wins more than the model's error."""
    if mixed is None or not mixed.fits:
        return ()
    cost = f"{mixed.step_time_overhead:+.1%}"
    if stock is None:
        return (f"a per-layer plan fits, for {cost} step time: --per-layer",)
    if stock.step_time_overhead - mixed.step_time_overhead < MODEL_ERROR:
        return ()
    stocked = f"{stock.step_time_overhead:+.1%}"
    return (f"a per-layer plan would cost {cost} in place of {stocked}: --per-layer",)


def _close_calls(
    judge: Judge, outcomes: Sequence[Outcome], chosen: Outcome | None
) -> Iterator[str]:
    """Say where the answer hangs on less than the model's error."""
    if chosen is None:
        return
    peers = [
        o
        for o in outcomes
        if o.fits
        and o.choice != chosen.choice
        and not o.dominated
        and o.step_time_overhead - chosen.step_time_overhead < MODEL_ERROR
    ]
    if peers and chosen.step_time_overhead > 0:
        names = ", ".join(o.choice.label() for o in peers[:3])
        yield (
            f"close call: {names} within {MODEL_ERROR:.0%} of step time, less than the model's "
            "error; measure both"
        )
    shown = judge.predictor.predict(chosen.choice, composition=True)
    hot = shown.hot
    error = int(hot.activation_bytes_at_peak * MEMORY_ERROR)
    room = -judge.budget.over(chosen.peak_bytes, _allocator(judge), chosen.graph_pool_bytes)
    if room < error:
        yield (
            f"close call: {format_gib(room)} to spare, less than the model's error of "
            f"{format_gib(error)}; keep a margin or measure{_roomier(judge, outcomes, error)}"
        )
        return
    worst = max(row.peak_range_bytes[1] for row in shown.ranks)
    if judge.budget.over(worst, _allocator(judge), chosen.graph_pool_bytes) <= 0:
        return
    overlaps = judge.predictor.job.model.overlap_moe_expert_parallel_comm
    beside = " and two micro-batches in one layer (overlap_moe_expert_parallel_comm)"
    if may_be_uneven(judge.predictor.job):
        yield (
            f"close call: on a rank with {HIGH_LOAD:g} times its share of the routed tokens, as in the "
            f"most uneven public run{beside if overlaps else ''}, the peak would be "
            f"{format_gib(worst)} and not fit; --expert-load plans for it"
        )
    elif overlaps:
        yield (
            f"close call: with{beside.removeprefix(' and')} the peak may be {format_gib(worst)} and not "
            "fit; keep a margin or measure"
        )


def _roomier(judge: Judge, outcomes: Sequence[Outcome], error: int) -> str:
    """Name the next choice that fits with room for the model's error."""
    for outcome in outcomes:
        pools = outcome.graph_pool_bytes
        room = -judge.budget.over(outcome.peak_bytes, _allocator(judge), pools)
        if outcome.fits and not outcome.dominated and room >= error:
            cost = f"{outcome.step_time_overhead:+.1%}"
            return f"; {outcome.choice.label()} ({cost} step time) leaves {format_gib(room)}"
    return ""


def _allocator(judge: Judge) -> AllocatorModel:
    return allocator_of(judge.predictor.job.environment)
