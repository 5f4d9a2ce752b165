"""What the planner answers, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import Assumption, JobConfig
from recompute.search.budget import Budget
from recompute.timeline.stages import Stage
from recompute.timeline.static import microbatches_of, parallelism_of
from recompute.timeline.types import Phase, Prediction


class Predicts(Protocol):
    """What the search needs of a predictor (:class:`recompute.timeline.predict.Predictor`)."""

    job: JobConfig

    @property
    def stages(self) -> Sequence[Stage]:
        """Pipeline positions with their layers, pp first."""
        ...

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice."""
        ...

    def active_layers(self) -> Mapping[str, int]:
        """Count the layers on which each label does anything."""
        ...


class Status(StrEnum):
    """The verdict of a plan."""

    ALREADY_FITS = "already_fits"
    PLANNED = "planned"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Where a choice does not fit: the rank that is most over."""

    rank: tuple[tuple[str, int], ...]
    phase: Phase
    over_bytes: int
    """Bytes above the budget, margin counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One choice with what it does."""

    choice: RecomputeChoice
    peak_bytes: int
    """Highest allocated bytes over ranks and phases, static included."""
    reserved_range_bytes: tuple[int, int]
    """Ends of what is reserved; the upper one holds :attr:`graph_pool_bytes`."""
    step_time_overhead: float
    """Fraction of the control's step time; the control replays nothing."""
    breach: Breach | None
    graph_pool_bytes: int = 0
    """Most that pools of CUDA graphs may reserve beyond the allocated peak."""
    dominated: bool = False
    """Another choice needs no more memory and no more time; of equal ones all but the first."""

    @property
    def fits(self) -> bool:
        """Whether every rank stays within the budget in every phase."""
        return self.breach is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverResult:
    """A change other than recompute, and what it would do to the job without recompute."""

    name: str
    change: str
    overrides: tuple[str, ...]
    peak_delta_bytes: int
    """Difference of the highest allocated peak; 0 where only reserved memory changes."""
    fits: bool
    """With this change alone the job fits without recompute."""
    then: Outcome | None
    """With this change, the cheapest choice that fits; its overhead is over the changed job's control."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to: which is the cheapest recompute that fits?"""

    job: JobConfig
    status: Status
    budget: Budget
    chosen: Outcome | None
    alternatives: tuple[Outcome, ...]
    """Best first, feasible before infeasible, the chosen one included."""
    control: Outcome
    """No recompute."""
    current: RecomputeChoice
    """What the job does now, as Megatron would act on it."""
    closest: Outcome | None
    """The choice that is least over the budget, when none fits."""
    cheaper_first: tuple[LeverResult, ...]
    why: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    control_seconds: float
    """Predicted step time without recompute: an estimate, of use for comparing layouts."""
    stock: Outcome | None = None
    """Per-layer plans: the best choice that stock Megatron can make, to compare with."""

    @property
    def tokens_per_second(self) -> float | None:
        """Predicted tokens a second and GPU with the chosen recompute."""
        if self.chosen is None:
            return None
        step = self.control_seconds * (1.0 + self.chosen.step_time_overhead)
        return tokens_of_step(self.job) / step / gpus_of(self.job)


def tokens_of_step(job: JobConfig) -> int:
    """Return the tokens of one optimizer step over all GPUs."""
    sequences = job.micro_batch_size * microbatches_of(job) * parallelism_of(job).data
    return sequences * job.seq_length


def gpus_of(job: JobConfig) -> int:
    """Return the GPUs of a job."""
    return parallelism_of(job).world
