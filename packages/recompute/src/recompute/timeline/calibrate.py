"""Correct predictions by what the user's own control run measured.

Two residuals per pipeline rank, each with one meaning: static bytes are off by a sum (workspaces,
buffers and libraries that the job does not name), the activation part by a factor (sizes that the
model sees a little too small or too large). Both are then applied to every other choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final, Protocol

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import Assumption, JobConfig
from recompute.errors import ConfigError
from recompute.timeline.moments import STATIC, WORKSPACES, Moment
from recompute.timeline.types import OwnedBytes, Phase, PhasePeak, Prediction, RankPeak
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.timeline.stages import Stage


class Predicts(Protocol):
    """What is corrected: :class:`recompute.timeline.predict.Predictor` or what stands in for it."""

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


class Pictured(Predicts, Protocol):
    """What a page of ``explain`` needs besides."""

    def moments(self, choice: RecomputeChoice, pp: int) -> tuple[Moment, ...]:
        """Return one step of a pipeline rank as a row of moments."""
        ...


SCALED: Final = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
"""Phases whose height over static bytes is activations."""

FARTHEST: Final = (0.5, 2.0)
"""Factors on the activation part beyond which the measured run is taken to be another job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one rank of a run showed."""

    choice: RecomputeChoice
    """What that run recomputed."""
    rank: int | None
    """Global rank; ``None`` where the input does not say, then the highest one."""
    static_bytes: int | None
    """Allocated between steps, optimizer states there."""
    peak_bytes: int
    step_seconds: float | None = None
    """One steady step, where the input has times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The residual of one pipeline rank."""

    static_bytes: int
    """Added to static bytes."""
    activation_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Corrections by pipeline rank, and where they come from."""

    source: str
    by_rank: Mapping[int, Correction]
    step: tuple[RecomputeChoice, float] | None = None
    """What the run recomputed and the seconds of its steady step, of the rank that took longest."""

    def of(self, pp: int) -> Correction:
        """Return a rank's correction; a rank that was not measured takes the mean of those that were."""
        if pp in self.by_rank:
            return self.by_rank[pp]
        known = self.by_rank.values()
        return Correction(
            static_bytes=round(fmean(c.static_bytes for c in known)),
            activation_factor=fmean(c.activation_factor for c in known),
        )

    def assumption(self, ranks: int) -> Assumption:
        """Say what was corrected by how much."""
        shown = [
            f"pp {pp}: static {_signed(c.static_bytes)}, activations x {c.activation_factor:.3f}"
            for pp, c in sorted(self.by_rank.items())
        ]
        rest = ranks - len(self.by_rank)
        if rest:
            shown.append(f"{rest} ranks that were not measured take the mean")
        return Assumption(id="calibration", text=f"corrected by {self.source}: {'; '.join(shown)}")


def _signed(size: int) -> str:
    return ("-" if size < 0 else "+") + format_gib(abs(size))


def calibration_of(predictor: Predicts, measured: Sequence[Measured], source: str) -> Calibration:
    """Work out the corrections.

    Args:
        predictor: Of the job that was measured.
        measured: Its ranks; a pipeline rank with several takes their highest peak.
        source: What to call the input.

    Raises:
        ConfigError: ``nothing-measured``, ``calibration-mismatch``: another job's run, by the sizes.
    """
    highest: dict[int, tuple[Measured, RankPeak]] = {}
    for item in measured:
        prediction = predictor.predict(item.choice)
        row = _row(prediction, item.rank)
        pp = dict(row.rank)["pp"]
        if pp not in highest or item.peak_bytes > highest[pp][0].peak_bytes:
            highest[pp] = (item, row)
    if not highest:
        raise ConfigError(
            "nothing-measured",
            f"{source} holds no peak of a run that trained",
            hint="give a ledger of recompute measure, a log with memory reports or a snapshot",
            data={"source": source},
        )
    found = {pp: _correction(item, row, source) for pp, (item, row) in highest.items()}
    steps = [(item.choice, item.step_seconds) for item in measured if item.step_seconds is not None]
    step = max(steps, key=lambda pair: pair[1], default=None)
    return Calibration(source=source, by_rank=found, step=step)


def _row(prediction: Prediction, rank: int | None) -> RankPeak:
    rows = (row for row in prediction.ranks if rank in row.global_ranks)
    return prediction.hot if rank is None else next(rows, prediction.hot)


def _correction(item: Measured, row: RankPeak, source: str) -> Correction:
    static = row.static.total if item.static_bytes is None else item.static_bytes
    delta = static - row.static.total
    height = max(p.peak_bytes for p in row.phases if p.phase in SCALED) - row.static.total
    factor = (item.peak_bytes - static) / max(height, 1)
    steps = [p.peak_bytes for p in row.phases if p.phase not in SCALED]
    if max(steps, default=0) - row.static.total >= height:
        factor = 1.0  # the peak is the optimizer's: it says nothing about activations
    if not FARTHEST[0] <= factor <= FARTHEST[1] or row.static.other + delta < 0:
        raise ConfigError(
            "calibration-mismatch",
            f"{source} does not fit this job: static {format_gib(static)} measured, "
            f"{format_gib(row.static.total)} predicted; activations {factor:.2f} times as predicted",
            hint="calibrate with a run of the same job, its control; hardware.num_gpus must be its",
            data={"source": source, "measured_static_bytes": static, "activation_factor": factor},
        )
    return Correction(static_bytes=delta, activation_factor=factor)


class Calibrated:
    """A predictor whose answers carry the corrections of a measured run.

    Args:
        inner: What predicts.
        calibration: The corrections.
    """

    def __init__(self, inner: Pictured, calibration: Calibration) -> None:
        self.inner = inner
        self.calibration = calibration
        self.job: JobConfig = inner.job

    @property
    def stages(self) -> Sequence[Stage]:
        """Pipeline positions with their layers, pp first."""
        return self.inner.stages

    @property
    def measured_step(self) -> tuple[RecomputeChoice, float] | None:
        """What the run recomputed, and the seconds of its step."""
        return self.calibration.step

    def active_layers(self) -> Mapping[str, int]:
        """Count the layers on which each label does anything."""
        return self.inner.active_layers()

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice and correct it."""
        plain = self.inner.predict(choice, composition=composition)
        ranks = tuple(
            corrected(row, self.calibration.of(dict(row.rank)["pp"])) for row in plain.ranks
        )
        said = self.calibration.assumption(len(ranks))
        return replace(plain, ranks=ranks, assumptions=(*plain.assumptions, said))

    def moments(self, choice: RecomputeChoice, pp: int) -> tuple[Moment, ...]:
        """Return one step of a rank as a row of moments, corrected as its figures are."""
        by = self.calibration.of(pp)
        return tuple(shifted(moment, by) for moment in self.inner.moments(choice, pp))


def shifted(moment: Moment, by: Correction) -> Moment:
    """Apply a correction to a moment: activations by the factor, workspaces by the sum."""
    factor = by.activation_factor if moment.phase in SCALED else 1.0

    def size(owned: OwnedBytes) -> int:
        if owned.owner == WORKSPACES:
            return max(0, owned.bytes + by.static_bytes)
        return owned.bytes if owned.owner in STATIC else round(owned.bytes * factor)

    alive = tuple(replace(owned, bytes=size(owned)) for owned in moment.alive)
    return replace(moment, alive=alive)


def corrected(row: RankPeak, by: Correction) -> RankPeak:
    """Apply a correction to one rank; what is alive stays as the model sees it."""
    before = row.static.total
    static = replace(row.static, other=max(0, row.static.other + by.static_bytes))

    def moved(size: int, *, scaled: bool) -> int:
        factor = by.activation_factor if scaled else 1.0
        return static.total + round((size - before) * factor)

    low, high = row.peak_range_bytes
    return replace(
        row,
        static=static,
        phases=tuple(
            PhasePeak(phase=p.phase, peak_bytes=moved(p.peak_bytes, scaled=p.phase in SCALED))
            for p in row.phases
        ),
        activation_bytes_after_forward=round(
            row.activation_bytes_after_forward * by.activation_factor
        ),
        peak_range_bytes=(moved(low, scaled=True), moved(high, scaled=True)),
    )
