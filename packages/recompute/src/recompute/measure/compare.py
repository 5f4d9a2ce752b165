"""Hold every candidate of a ledger against the control: delta, step time, verdict, prediction.

A candidate passes only after optimizer initialisation and enough steady steps, on every rank and in
every repeat, with a lower peak than the control's beyond the noise floor, or where the control does not
fit. Getting further than a control that failed is evidence, not a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from recompute.config.choice import RecomputeChoice
from recompute.errors import InputError, UnsupportedError
from recompute.measure.groups import (
    by_seed,
    control_of,
    differences,
    groups_of,
    measured,
    run_peaks,
    runs_by_seed,
    steady_runs,
)
from recompute.measure.row import Outcome
from recompute.measure.stand_in import cheapest_of, fits, lacking_of
from recompute.measure.stats import Ratio, overhead_by_seed, spread
from recompute.measure.types import (
    Compared,
    Comparison,
    Measured,
    MeasuredVerdict,
    NoiseFloor,
    RunGroup,
)

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.ledger import Ledger
    from recompute.timeline.types import Prediction

STAGES: Final = (
    "initialization",
    "data",
    "model_build",
    "forward",
    "loss",
    "backward",
    "grad_sync",
    "optimizer_init",
    "optimizer_step",
)
"""In the order in which a run meets them, to say which of two failures came later."""


ENDED: Final = frozenset((Outcome.PASS, Outcome.NONFINITE))
"""Outcomes of runs that came to the end of their loop."""


class PredictsPeaks(Protocol):
    """What a comparison needs of :class:`recompute.timeline.predict.Predictor`."""

    def predict(self, choice: RecomputeChoice) -> Prediction:
        """Predict one choice."""
        ...


def compare(
    ledger: Ledger,
    *,
    job: JobConfig | None = None,
    allow_differences: bool = False,
    predictor_of: Callable[[JobConfig], PredictsPeaks] | None = None,
) -> Comparison:
    """Compare a ledger's candidates with its control.

    Args:
        ledger: As read.
        job: The normalized job of the ledger, for predictions.
        allow_differences: Compare runs that differ in more than the recompute choice, and say in what.
        predictor_of: What predicts; by default the model's own.

    Raises:
        InputError: ``no-rows``; ``ledger-differs``: a comparison would not be matched.
    """
    groups = groups_of(ledger.rows)
    if not groups:
        raise InputError(
            "no-rows",
            f"{ledger.root} holds no rows",
            hint="run recompute measure first",
            data={"path": ledger.root},
        )
    control = control_of(groups)
    reference = control if control is not None and fits(control) else cheapest_of(groups)
    base = reference or control
    others = [group for group in groups if group is not control]
    found = {g.candidate: differences(ledger, g, base) for g in groups if base and g is not base}
    if not allow_differences:
        _refuse_differences(found)
    noise = _noise(base)
    peaks, notes = _predictions(groups, job, predictor_of)
    own = None if control is None else measured(control, None)
    held = _Base(
        control=own,
        control_lacks=None if own is None or control is None else lacking_of(own, control),
        group=base,
        figures=None if base is None else measured(base, None),
        noise=noise,
        predicted=peaks,
        differences=found,
    )
    rows = [_compared(group, held) for group in others]
    notes += _notes(held, control, reference)
    return Comparison(
        root=ledger.root,
        job=job,
        control=held.control,
        control_predicted_peak_bytes=peaks.get(control.candidate) if control else None,
        reference=held.figures if reference is not None and reference is not control else None,
        noise=noise,
        candidates=tuple(rows),
        environment={**ledger.environment, **(groups[0].rows[0].environment or {})},
        notes=(*ledger.notes, *notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """What every candidate is held against."""

    control: Measured | None
    group: RunGroup | None
    """The control; where that does not fit, or was not measured, the cheapest that passes, else the control."""
    figures: Measured | None
    """Of ``group``."""
    noise: NoiseFloor
    predicted: Mapping[str, int]
    differences: Mapping[str, tuple[str, ...]]
    control_lacks: str | None = None
    """What a control that did not fail lacks to be compared with."""

    @property
    def passed(self) -> bool:
        return self.figures is not None and self.figures.outcome is Outcome.PASS

    @property
    def is_control(self) -> bool:
        return self.control is not None and self.control.outcome is Outcome.PASS


def _notes(held: _Base, control: RunGroup | None, reference: RunGroup | None) -> list[str]:
    """Say what a comparison lacks."""
    notes = []
    if control is None:
        notes.append("no control: no recompute was not measured, so nothing passes")
    elif held.control is not None and held.control.outcome is not Outcome.PASS:
        where = f" in {held.control.stage.replace('_', ' ')}" if held.control.stage else ""
        notes.append(
            f"no control exists: {control.candidate} ends in {held.control.outcome}{where}"
        )
    if reference is not None and reference is not control:
        notes.append(
            f"figures are against {reference.candidate}, the cheapest that passes, in place of a control"
        )
    if reference is not None and held.noise.bytes is None:
        name = "the control" if reference is control else reference.candidate
        notes.append(f"no A/A repeat of {name}: the noise floor is unknown and taken as 0")
    return notes


def _compared(group: RunGroup, base: _Base) -> Compared:
    figures = measured(group, base.group)
    delta, ratio = None, None
    against = base.group is not None and group is not base.group and base.passed
    if against and base.group is not None and base.figures is not None:
        if figures.hot is not None and base.figures.hot is not None and _passed(figures):
            delta = figures.hot.peak_bytes - base.figures.hot.peak_bytes
        if figures.outcome in ENDED:  # the few steps before a failure are no step time
            ratio = overhead_by_seed(runs_by_seed(group), runs_by_seed(base.group))
    verdict, reason = _verdict(figures, group, base, delta, ratio)
    other = base.differences.get(group.candidate, ())
    predicted = None if other else base.predicted.get(group.candidate)
    before = None if base.group is None else base.predicted.get(base.group.candidate)
    if group is base.group:
        before = None
    return Compared(
        measured=figures,
        verdict=verdict,
        reason=reason,
        peak_delta_bytes=delta,
        step_time=ratio,
        predicted_peak_bytes=predicted,
        predicted_delta_bytes=None if predicted is None or before is None else predicted - before,
        differences=other,
    )


def _passed(figures: Measured) -> bool:
    return figures.outcome is Outcome.PASS


def _verdict(
    figures: Measured, group: RunGroup, base: _Base, delta: int | None, ratio: Ratio | None
) -> tuple[MeasuredVerdict, str]:
    """Return the verdict and the sentence that gives its reason."""
    if outside := next((row for row in group.rows if row.interrupted), None):
        said = outside.message or "ended from outside"
        return MeasuredVerdict.INCOMPLETE, f"says nothing yet: {said[:200]}"
    if not _passed(figures):
        return _failed(figures, base.control)
    lacking = lacking_of(figures, group)
    if lacking is None and base.control is None:
        lacking = "no control to compare with"
    if lacking is None and base.is_control and base.control_lacks is not None:
        lacking = f"the control: {base.control_lacks}"
    if lacking is None and base.is_control and delta is None:
        lacking = "no peak was measured"
    if lacking is None and not base.is_control and base.control is not None:
        if base.control.outcome is Outcome.OOM:
            return MeasuredVerdict.PASS, "completes where the control runs out of memory"
        lacking = f"the control ended in {base.control.outcome}: nothing matched to compare with"
    if lacking is not None or delta is None:
        return MeasuredVerdict.INCOMPLETE, lacking or ""
    return _judged(delta, ratio, base.noise)


def _judged(delta: int, ratio: Ratio | None, noise: NoiseFloor) -> tuple[MeasuredVerdict, str]:
    floor = noise.bytes or 0
    slower = ratio is not None and ratio.low > (noise.fraction or 0.0)
    if delta < -floor:
        return MeasuredVerdict.PASS, "the peak is lower than the control's beyond the noise floor"
    if delta > floor:
        return MeasuredVerdict.WORSE, "the peak is higher than the control's"
    if slower:
        return MeasuredVerdict.WORSE, "the peak is the control's and every step is slower"
    return MeasuredVerdict.WITHIN_NOISE, "peak and step time are the control's within the noise"


def _failed(figures: Measured, base: Measured | None) -> tuple[MeasuredVerdict, str]:
    where = f" in {figures.stage.replace('_', ' ')}" if figures.stage else ""
    plain = MeasuredVerdict(figures.outcome.value)
    if base is None or base.outcome is Outcome.PASS or figures.outcome is not Outcome.OOM:
        return plain, f"{figures.outcome}{where}"
    if _progress(figures) > _progress(base):
        stage = (base.stage or "an unknown stage").replace("_", " ")
        text = f"gets further than the control, which ends in {stage}, and still ends in {figures.outcome}{where}"
        return MeasuredVerdict.MOVED_THE_WALL, text
    same = base.outcome is figures.outcome
    return plain, f"{figures.outcome}{where}{', as the control' if same else ''}"


def _progress(figures: Measured) -> tuple[int, int]:
    stage = figures.stage or ""
    return figures.steady_steps, STAGES.index(stage) if stage in STAGES else -1


def _noise(control: RunGroup | None) -> NoiseFloor:
    """Measure how far apart equal runs are: those with the same data."""
    if control is None:
        return NoiseFloor(bytes=None, fraction=None, repeats=0)
    equal = [group for group in by_seed(control).values() if len(group.runs) > 1]
    peaks = [found for group in equal if len(found := run_peaks(group)) > 1]
    apart = (spread(steady_runs(group)) for group in equal)
    spreads = [fraction for fraction in apart if fraction is not None]
    return NoiseFloor(
        bytes=max((max(found) - min(found) for found in peaks), default=None),
        fraction=max(spreads, default=None),
        repeats=max((len(group.runs) for group in equal), default=1),
    )


def _predictions(
    groups: tuple[RunGroup, ...],
    job: JobConfig | None,
    predictor_of: Callable[[JobConfig], PredictsPeaks] | None,
) -> tuple[dict[str, int], list[str]]:
    """Predict the peak of every candidate whose choice is known and that torch's allocator counted."""
    if any(row.meter != "cuda" for group in groups for row in group.rows):
        return {}, [
            "bytes were not counted by torch's allocator: they are not compared with predictions"
        ]
    if job is None:
        return {}, ["the ledger holds no job: nothing is predicted"]
    from recompute.timeline.predict import Predictor

    try:
        predictor: PredictsPeaks = (predictor_of or Predictor)(job)
        peaks = {
            group.candidate: predictor.predict(group.choice).hot.peak.peak_bytes
            for group in groups
            if group.choice is not None
        }
    except UnsupportedError as error:
        return {}, [f"no predictions: {error.message}"]
    return peaks, []


def _refuse_differences(found: dict[str, tuple[str, ...]]) -> None:
    for candidate, names in found.items():
        if names:
            raise InputError(
                "ledger-differs",
                f"{candidate} differs from the control in more than the recompute choice: {'; '.join(names)[:400]}",
                hint="measure it again with one change, or pass --allow-differences",
                data={"candidate": candidate, "differences": list(names)},
            )
