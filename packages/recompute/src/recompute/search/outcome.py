"""Predictions against a budget: outcomes, their order, which are dominated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recompute.config.choice import LABELS, NO_RECOMPUTE, RecomputeChoice
from recompute.search.reserved import allocator_of, reserved_range
from recompute.search.types import Breach, Outcome, Predicts

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.search.budget import Budget
    from recompute.search.cost import CostModel
    from recompute.timeline.types import Prediction

TIME_DIGITS = 9
"""Overheads that agree to this many digits are one and the same cost."""


def new_predictor(job: JobConfig) -> Predicts:
    """Return the predictor that a search uses where none is given."""
    from recompute.timeline.predict import Predictor

    return Predictor(job)


@dataclass(slots=True)
class Judge:
    """Turns choices into outcomes for one job, budget and cost model."""

    predictor: Predicts
    cost: CostModel
    budget: Budget
    control: Prediction

    def outcome(self, choice: RecomputeChoice) -> Outcome:
        """Predict a choice and hold it against the budget."""
        return self.judge(self.predictor.predict(choice))

    def judge(self, prediction: Prediction) -> Outcome:
        """Hold a prediction against the budget."""
        allocator = allocator_of(self.predictor.job.environment)
        peak = prediction.hot.peak.peak_bytes
        low, high = reserved_range(peak, allocator)
        overhead = round(self.cost.overhead(self.control, prediction), TIME_DIGITS)
        return Outcome(
            choice=prediction.choice,
            peak_bytes=peak,
            reserved_range_bytes=(low, high + prediction.graph_pool_bytes),
            step_time_overhead=overhead,
            breach=self.breach(prediction),
            graph_pool_bytes=prediction.graph_pool_bytes,
        )

    def breach(self, prediction: Prediction) -> Breach | None:
        """Return the rank that is most over the budget, the first one on a tie."""
        allocator = allocator_of(self.predictor.job.environment)
        hot = prediction.hot
        over = self.budget.over(hot.peak.peak_bytes, allocator, prediction.graph_pool_bytes)
        if over <= 0:
            return None
        return Breach(rank=hot.rank, phase=hot.peak.phase, over_bytes=over)


def ranked(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Order outcomes: feasible before infeasible, then cheapest, then lowest, then narrowest.

    Infeasible ones come by how far they are over. Of choices that take the same time the one with the
    lowest peak comes first, so that the first is never dominated; what still ties goes to the choice
    that replays less of the model: selective before full, fewer labels, labels earlier in Megatron's
    order, fewer layers.
    """
    return mark_dominated(sorted(outcomes, key=_order))


def _order(outcome: Outcome) -> tuple[object, ...]:
    choice = outcome.choice
    over = 0 if outcome.breach is None else outcome.breach.over_bytes
    return (over > 0, over, outcome.step_time_overhead, outcome.peak_bytes, *_width(choice))


def _width(choice: RecomputeChoice) -> tuple[object, ...]:
    """Return how much of the model a choice's boundaries cover, narrowest first."""
    spans = choice.per_layer or ()
    return (
        choice.recompute_granularity == "full",
        bool(spans),
        len(choice.recompute_modules),
        tuple(LABELS.index(label) for label in choice.recompute_modules if label in LABELS),
        choice.recompute_method or "",
        choice.recompute_num_layers or 0,
        tuple((span.first, span.last, span.modules) for span in spans),
    )


def mark_dominated(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Mark every outcome that another one matches in memory and time, and beats in one of them.

    Of several that are equal in both, the first in the order given stays unmarked.
    """
    order = sorted(
        range(len(outcomes)),
        key=lambda i: (outcomes[i].step_time_overhead, outcomes[i].peak_bytes, i),
    )
    lowest: int | None = None
    beaten = set()
    for index in order:
        peak = outcomes[index].peak_bytes
        if lowest is not None and peak >= lowest:
            beaten.add(index)
        else:
            lowest = peak
    return tuple(replace(o, dominated=i in beaten) for i, o in enumerate(outcomes))


def control_of(predictor: Predicts) -> Prediction:
    """Predict the job without recompute."""
    return predictor.predict(NO_RECOMPUTE)
