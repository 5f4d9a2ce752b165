"""The cheapest choice that fits one job, without the bytes of choices that cost more.

What a choice replays needs no run over an arena, so every choice is priced first; then bytes are worked
out from the cheapest choice on until one fits. Exact: prices are those of the full predictions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.search.outcome import TIME_DIGITS, Judge, ranked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recompute.search.types import Outcome
    from recompute.timeline.types import Replay


@runtime_checkable
class Prices(Protocol):
    """A predictor that can say what a choice replays without working out bytes."""

    def replays(self, choice: RecomputeChoice) -> Sequence[Replay]:
        """Return what runs again on each rank of a prediction."""
        ...


def cheapest(
    judge: Judge,
    choices: Iterable[RecomputeChoice],
    is_legal: Callable[[RecomputeChoice], bool],
    *,
    below: float,
) -> Outcome | None:
    """Return the first of :func:`recompute.search.outcome.ranked` that fits, no recompute left out.

    Args:
        judge: Predicts, prices and holds against the budget.
        choices: All choices of the job, legal or not.
        is_legal: Says which are; asked only of those that may be the answer.
        below: Overhead at which a choice is of no use any more.
    """
    for overhead, tied in itertools.groupby(_priced(judge, choices), key=lambda pair: pair[0]):
        if overhead >= below:
            return None
        legal = [choice for _, choice in tied if is_legal(choice)]
        for outcome in ranked(judge.outcome(choice) for choice in legal):
            if outcome.fits:
                return outcome
    return None


def _priced(
    judge: Judge, choices: Iterable[RecomputeChoice]
) -> Iterator[tuple[float, RecomputeChoice]]:
    """Yield every choice with its overhead, cheapest first."""
    found = [(_price(judge, choice), choice) for choice in choices if choice != NO_RECOMPUTE]
    return iter(sorted(found, key=lambda pair: pair[0]))


def _price(judge: Judge, choice: RecomputeChoice) -> float:
    predictor = judge.predictor
    if not isinstance(predictor, Prices):
        return judge.outcome(choice).step_time_overhead
    replays = predictor.replays(choice)
    return round(judge.cost.overhead_of(judge.control, replays), TIME_DIGITS)
