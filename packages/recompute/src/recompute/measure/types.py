"""What a comparison answers, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from recompute.config.choice import RecomputeChoice
from recompute.measure.row import Outcome, Row
from recompute.measure.stats import Ratio


class MeasuredVerdict(StrEnum):
    """What a matched measurement says about a candidate."""

    PASS = "pass"
    WITHIN_NOISE = "within noise"
    WORSE = "worse"
    MOVED_THE_WALL = "moved the wall"
    INCOMPLETE = "incomplete"
    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    NONFINITE = "nonfinite"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """All runs of one candidate: one tuple of rows (one row per rank) for each repeat."""

    candidate: str
    choice: RecomputeChoice | None
    runs: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of all repeats and ranks."""
        return tuple(row for run in self.runs for row in run)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeakMeasured:
    """Highest measured allocation of one rank."""

    rank: int
    peak_bytes: int
    phase: str
    delta_bytes: int | None
    """Against the control on the same rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """How much two equal runs differ; None where nothing was repeated."""

    bytes: int | None
    fraction: float | None
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One candidate, measured: sizes in bytes, times in seconds."""

    candidate: str
    choice: RecomputeChoice | None
    outcome: Outcome
    stage: str | None
    repeats: int
    steady_steps: int
    """Of the run with the fewest."""
    ranks: tuple[RankPeakMeasured, ...]
    reserved_peak_bytes: int | None
    step_seconds: float | None
    """Median of the steady steps, of the slowest rank."""
    phases: tuple[tuple[str, int], ...]
    """Highest allocation of each phase over ranks and repeats."""
    whole_step_bytes: int | None = None
    """Highest allocation of steps that were looked at once, whatever their phase; None where there were none."""
    kernel_share: float | None = None
    """Share of a step in which the GPU was busy, where it was measured."""
    cut_short: bool = False
    """One of its runs was ended from outside, or was killed before it wrote its end."""
    notes: tuple[str, ...] = ()

    @property
    def hot(self) -> RankPeakMeasured | None:
        """The rank with the highest peak."""
        return max(self.ranks, key=lambda r: r.peak_bytes, default=None)

    @property
    def above_phases_bytes(self) -> int | None:
        """What steps that were looked at once reached, where that is above every phase."""
        whole = self.whole_step_bytes
        if whole is None or any(size >= whole for _, size in self.phases):
            return None
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A candidate held against the control."""

    measured: Measured
    verdict: MeasuredVerdict
    reason: str
    peak_delta_bytes: int | None
    step_time: Ratio | None
    predicted_peak_bytes: int | None
    predicted_delta_bytes: int | None
    differences: tuple[str, ...] = ()
    """What else than the recompute choice differs from the control; empty unless allowed."""

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured peak, less one."""
        return _error(self.measured, self.predicted_peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A ledger compared."""

    root: str
    job: Any
    """The job (:class:`recompute.config.schema.JobConfig`), where the ledger holds it."""
    control: Measured | None
    control_predicted_peak_bytes: int | None
    noise: NoiseFloor
    candidates: tuple[Compared, ...]
    reference: Measured | None
    """What figures are against where the control does not fit: the cheapest that passes."""
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def control_prediction_error(self) -> float | None:
        """The control's predicted over its measured peak, less one."""
        if self.control is None:
            return None
        return _error(self.control, self.control_predicted_peak_bytes)

    @property
    def any_passes(self) -> bool:
        """Whether a candidate passes."""
        return any(row.verdict is MeasuredVerdict.PASS for row in self.candidates)


def _error(measured: Measured, predicted_peak_bytes: int | None) -> float | None:
    """Return predicted over measured peak, less one.

    None where nothing was predicted or measured, and where a run did not come to its own end: cut by a time
    limit, out of memory, crashed or interrupted, it may not have reached the peak that was predicted.
    """
    hot = measured.hot
    ended = measured.outcome in {Outcome.PASS, Outcome.NONFINITE} and not measured.cut_short
    if predicted_peak_bytes is None or hot is None or not hot.peak_bytes or not ended:
        return None
    return predicted_peak_bytes / hot.peak_bytes - 1
