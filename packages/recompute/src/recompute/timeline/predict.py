"""Predict the peak of every rank and phase for one choice."""

from __future__ import annotations

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import JobConfig
from recompute.timeline.types import Prediction


class Predictor:
    """Predictions for one job; what choices share (tapes, profiles, static bytes) is computed once."""

    def __init__(self, job: JobConfig) -> None:
        self.job = job

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice.

        Args:
            choice: What to recompute; legality is not checked here.
            composition: Also say what is alive at each rank's peak.

        Raises:
            UnsupportedError: The job holds a layer or setting that is not modelled.
        """
        raise NotImplementedError
