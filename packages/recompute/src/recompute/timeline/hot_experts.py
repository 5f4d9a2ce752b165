"""Predict under uneven routing: the hot rank's peak, with the balanced one as the low end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from recompute.timeline.predict import Predictor
from recompute.timeline.types import Prediction

if TYPE_CHECKING:
    from recompute.config.choice import RecomputeChoice
    from recompute.config.schema import JobConfig
    from recompute.timeline.moments import Moment
    from recompute.timeline.stages import Stage


class HotExperts:
    """A predictor of the rank that gets more than its share of the routed tokens.

    Args:
        job: A complete, normalised job.
        load: Routed tokens that arrive at the hot rank over their mean.

    Raises:
        UnsupportedError: As :class:`recompute.timeline.predict.Predictor`.
    """

    def __init__(self, job: JobConfig, load: float) -> None:
        self.job = job
        self.hot = Predictor(job, expert_load=load)
        self.balanced = Predictor(job)

    @property
    def stages(self) -> Sequence[Stage]:
        """Pipeline positions with their layers, pp first."""
        return self.hot.stages

    def active_layers(self) -> Mapping[str, int]:
        """Count the layers on which each label does anything."""
        return self.hot.active_layers()

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice on the hot rank; ranges reach down to the balanced prediction."""
        hot = self.hot.predict(choice, composition=composition)
        balanced = self.balanced.predict(choice)
        ranks = tuple(
            replace(row, peak_range_bytes=(even.peak_range_bytes[0], row.peak_range_bytes[1]))
            for row, even in zip(hot.ranks, balanced.ranks, strict=True)
        )
        return replace(hot, ranks=ranks)

    def moments(self, choice: RecomputeChoice, pp: int) -> tuple[Moment, ...]:
        """Return one step of the hot rank as a row of moments, for pictures."""
        return self.hot.moments(choice, pp)
