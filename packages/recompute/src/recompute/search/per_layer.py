"""Plans that recompute different boundaries in different layers, which stock Megatron cannot say.

A pipeline stage's peak depends on its own layers only, and the step on the slowest stage, so every stage
takes the cheapest mix that fits it and the others pay nothing. Within a stage at most two boundaries are
mixed: with one memory constraint the best fractional mix has two, so a third could only win what rounding
to whole layers loses. The one that keeps less comes first: what a stage's first layers save stays
through the whole backward, and a replay late in the stage would run on top of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recompute.config.choice import LABELS, LayerSpan, RecomputeChoice
from recompute.search.reserved import allocator_of
from recompute.timeline.layers import acting_boundaries

if TYPE_CHECKING:
    from recompute.search.outcome import Judge
    from recompute.search.types import Outcome
    from recompute.timeline.stages import Stage
    from recompute.timeline.types import Prediction, RankPeak

WHOLE_LAYER = "full"
"""Boundary around a whole layer, as ``full/block`` draws it, in the ``modules`` of a span."""

ENCLOSING = {"mlp_act": ("mlp",), "norm_act": ("layernorm", "mlp")}
"""Boundary that Megatron lacks -> labels that already contain it or that it cannot be drawn beside."""

MAX_OPTIONS = 8
"""Boundaries kept for mixing, evenly over the Pareto front of bytes kept and cost, besides the one of
the best stock choice: a mix is then never worse than that choice."""

Modules = tuple[str, ...]
Mix = tuple[tuple[int, Modules], ...]
"""``(global layer number, modules)`` of the layers of one stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One boundary that any layer may take."""

    modules: Modules
    overhead: float
    """Step-time overhead when all layers take it."""
    kept: tuple[int, ...]
    """Activation bytes after forward and at the peak when all layers take it, for each rank."""


def best_per_layer(judge: Judge, stock: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the best per-layer plan, or nothing when it is no different from a stock choice.

    Args:
        judge: Predicts, prices and holds against the budget.
        stock: Outcomes of the stock choices; their labels are the boundaries to mix, besides whole
            layers and boundaries that the model knows and Megatron has no label for.
    """
    options = _options(judge, stock)
    best: dict[int, tuple[tuple[bool, float, int], Mix]] = {}
    allocator = allocator_of(judge.predictor.job.environment)
    for mixes in _mixes(judge.predictor.stages, options):
        rows = _rows_by_stage(judge.predictor.predict(_choice(mixes)))
        for index, mix in enumerate(mixes):
            peak = max(rank.peak.peak_bytes for rank in rows[index])
            replay = max(judge.cost.stage(rank).replay for rank in rows[index])
            pools = max(rank.graph_pool_bytes for rank in rows[index])
            over = judge.budget.over(peak, allocator, pools)
            key = (over > 0, float(over) if over > 0 else replay, peak)
            if index not in best or key < best[index][0]:
                best[index] = (key, mix)
    if not best:
        return ()
    choice = _choice(_acting([best[index][1] for index in sorted(best)], judge))
    if not choice.per_layer:
        return ()
    return (judge.judge(judge.predictor.predict(choice)),)


def _options(judge: Judge, stock: Sequence[Outcome]) -> list[Option]:
    """Return the boundaries that no other one beats in bytes kept, peak and cost."""
    found = [_option(judge, modules) for modules in _boundaries(judge, stock)]
    found.sort(key=lambda o: (o.overhead, sum(o.kept), len(o.modules), o.modules))
    front: list[Option] = []
    for option in found:
        if not any(_at_most(better.kept, option.kept) for better in front):
            front.append(option)
    if len(front) <= MAX_OPTIONS:
        return front
    best = next((o.choice.recompute_modules for o in stock if o.fits), ())
    kept = {option.modules for option in _thinned(front)} | {best}
    return [option for option in front if option.modules in kept]


def _boundaries(judge: Judge, stock: Sequence[Outcome]) -> Iterator[Modules]:
    """Yield what a layer may recompute: label subsets, each with boundaries that Megatron lacks, all."""
    lacking = _without_a_label(judge)
    counts = range(len(lacking) + 1)
    extras = [e for count in counts for e in itertools.combinations(lacking, count)]
    for outcome in stock:
        if outcome.choice.recompute_granularity == "full":
            continue
        modules = outcome.choice.recompute_modules
        for extra in extras:
            around = {label for name in extra for label in ENCLOSING.get(name, ())}
            if not around.intersection(modules):
                yield (*modules, *extra)
    model = judge.predictor.job.model
    applies = not (model.fp8 or model.fp4)  # recompute.megatron.apply refuses it: apply-quantized
    if applies and any(outcome.choice.recompute_granularity == "full" for outcome in stock):
        yield (WHOLE_LAYER,)


def _without_a_label(judge: Judge) -> Modules:
    """Return boundaries that Megatron has no label for, where discarding outputs is known to be safe.

    Not with FP8 or FP4, whose linears keep a quantised copy and need ``save_original_input``, nor with
    CUDA graphs, which capture what runs.
    """
    model = judge.predictor.job.model
    if model.fp8 or model.fp4 or model.enable_cuda_graph or model.cuda_graph_impl != "none":
        return ()
    return tuple(sorted(set(judge.predictor.active_layers()) - set(LABELS)))


def _option(judge: Judge, modules: Modules) -> Option:
    last = max(
        (layer.number for s in judge.predictor.stages for c in s.chunks for layer in c.layers),
        default=0,
    )
    spans = (LayerSpan(first=0, last=last, modules=modules),) if modules else ()
    prediction = judge.predictor.predict(RecomputeChoice(per_layer=spans))
    overhead = judge.cost.overhead(judge.control, prediction)
    return Option(modules=modules, overhead=overhead, kept=_kept(prediction))


def _thinned(front: list[Option]) -> list[Option]:
    """Keep both ends of the front and evenly spaced options between them."""
    last = len(front) - 1
    picked = sorted({round(i * last / (MAX_OPTIONS - 1)) for i in range(MAX_OPTIONS)})
    return [front[index] for index in picked]


def _rows_by_stage(prediction: Prediction) -> dict[int, list[RankPeak]]:
    """Return the rows of each pipeline stage: one, or one for each expert share."""
    rows: dict[int, list[RankPeak]] = {}
    for rank in prediction.ranks:
        rows.setdefault(dict(rank.rank).get("pp", 0), []).append(rank)
    return rows


def _kept(prediction: Prediction) -> tuple[int, ...]:
    """Return what an option keeps and how high it goes, per rank: both must be beaten."""
    after = [rank.activation_bytes_after_forward for rank in prediction.ranks]
    return (*after, *(rank.activation_bytes_at_peak for rank in prediction.ranks))


def _at_most(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(left, right, strict=True))


def _mixes(stages: Sequence[Stage], options: Sequence[Option]) -> Iterator[list[Mix]]:
    """Yield one mix for every stage at a time: two options, and how many layers take the first."""
    orders = [_orders(stage) for stage in stages]
    longest = max((len(order[0]) for order in orders), default=0)
    ways = max((len(order) for order in orders), default=1)
    for weak, strong in itertools.combinations(options, 2):
        for way in range(ways):
            for count in range(longest + 1):
                yield [
                    tuple(
                        (number, strong.modules if position < count else weak.modules)
                        for position, number in enumerate(order[min(way, len(order) - 1)])
                    )
                    for order in orders
                ]


def _orders(stage: Stage) -> list[tuple[int, ...]]:
    """Return the orders in which a stage's layers take the stronger option.

    By global number, so that the first chunk, which is longest in flight, goes first; with several
    chunks also their first layers together, then their second ones.
    """
    chunks = [[layer.number for layer in chunk.layers] for chunk in stage.chunks]
    plain = tuple(itertools.chain.from_iterable(chunks))
    if len(chunks) == 1:
        return [plain]
    rounds = itertools.zip_longest(*chunks)
    spread = tuple(number for row in rounds for number in row if number is not None)
    return [plain] if spread == plain else [plain, spread]


def _acting(mixes: Sequence[Mix], judge: Judge) -> list[Mix]:
    """Leave out of each layer's boundaries those that do nothing there: an expert layer has no ``mlp``.

    The prediction stays; the plan can be applied to the model, where a boundary without effect is refused.
    """
    predictor = judge.predictor
    acting = acting_boundaries(predictor.job, predictor.stages)
    return [
        tuple((number, tuple(m for m in modules if m in acting[number])) for number, modules in mix)
        for mix in mixes
    ]


def _choice(mixes: Sequence[Mix]) -> RecomputeChoice:
    """Write the layers of all stages as spans of consecutive layers with the same modules."""
    layers = sorted(pair for mix in mixes for pair in mix if pair[1])
    spans: list[LayerSpan] = []
    for number, modules in layers:
        if spans and spans[-1].last == number - 1 and spans[-1].modules == modules:
            spans[-1] = LayerSpan(first=spans[-1].first, last=number, modules=modules)
        else:
            spans.append(LayerSpan(first=number, last=number, modules=modules))
    return RecomputeChoice(per_layer=tuple(spans))
