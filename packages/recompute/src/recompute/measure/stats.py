"""Step times compared: the ratio of two medians with a confidence interval.

Steps of one run are not independent of each other and two equal runs differ, so the interval holds two
parts: the scatter of the steps within each run, and the scatter between equal runs (A/A repeats).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Final

LEVEL: Final = 0.95
MEDIAN_SE: Final = 1.2533
"""Standard error of a median over that of a mean, for a normal sample: sqrt(pi/2)."""
MAD_TO_SD: Final = 1.4826
"""Standard deviation over the median absolute deviation, for a normal sample."""

Runs = Sequence[Sequence[float]]
"""Steady step times in seconds, one sequence for each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much slower a candidate is, as a fraction of the control's step time."""

    overhead: float
    low: float
    high: float


def overhead(candidate: Runs, control: Runs) -> Ratio | None:
    """Compare step times.

    Args:
        candidate: Runs of the candidate.
        control: Runs of the control; two or more also say how equal runs differ.

    Returns:
        The overhead with its 95% interval, or None where a side has no positive step times.
    """
    ours, theirs = _logs(candidate), _logs(control)
    if not ours or not theirs:
        return None
    difference = _mean([median(run) for run in ours]) - _mean([median(run) for run in theirs])
    between, degrees = _between(ours, theirs)
    variance = between * (1 / len(ours) + 1 / len(theirs))
    variance += sum(_within(run) for run in ours) / len(ours) ** 2
    variance += sum(_within(run) for run in theirs) / len(theirs) ** 2
    half = t_quantile(degrees) * math.sqrt(variance)
    return Ratio(
        overhead=math.expm1(difference),
        low=math.expm1(difference - half),
        high=math.expm1(min(difference + half, 700.0)),
    )


def overhead_by_seed(candidate: Mapping[int, Runs], control: Mapping[int, Runs]) -> Ratio | None:
    """Compare step times seed by seed: what the order of the data does to both does not count.

    Args:
        candidate: Runs of the candidate, under each seed of the data.
        control: Runs of the control, likewise.

    Returns:
        The mean of the seeds' overheads with its 95% interval; None where no seed has both. With three seeds
        or more the interval also is at least what the seeds themselves differ by.
    """
    pairs = [(candidate[seed], control[seed]) for seed in candidate if seed in control]
    found = [ratio for ours, theirs in pairs if (ratio := overhead(ours, theirs)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    centers = [math.log1p(ratio.overhead) for ratio in found]
    halves = [math.log1p(ratio.high) - center for ratio, center in zip(found, centers, strict=True)]
    center, count = _mean(centers), len(found)
    half = math.sqrt(sum(half**2 for half in halves)) / count
    if count > 2:
        scatter = math.sqrt(sum((value - center) ** 2 for value in centers) / (count - 1))
        half = max(half, t_quantile(count - 1) * scatter / math.sqrt(count))
    return Ratio(
        overhead=math.expm1(center),
        low=math.expm1(center - half),
        high=math.expm1(min(center + half, 700.0)),
    )


def spread(runs: Runs) -> float | None:
    """Return the largest difference between the medians of equal runs, as a fraction.

    None with fewer than two runs: nothing was repeated.
    """
    medians = [median(run) for run in _logs(runs)]
    return math.expm1(max(medians) - min(medians)) if len(medians) > 1 else None


def t_quantile(degrees: float) -> float:
    """Return the two-sided 95% quantile of Student's t.

    Exact for 1 and 2 degrees of freedom; above, the expansion of Abramowitz and Stegun 26.7.5 in the
    normal quantile (within 0.5% from 3 degrees on).
    """
    tail = (1 + LEVEL) / 2
    if degrees <= 1:
        return math.tan(math.pi * (tail - 0.5))
    if degrees <= 2:
        return (2 * tail - 1) * math.sqrt(2 / (4 * tail * (1 - tail)))
    z = NormalDist().inv_cdf(tail)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


def _between(ours: Runs, theirs: Runs) -> tuple[float, float]:
    """Return the variance between equal runs, pooled, and the degrees of freedom of the interval.

    Without any repeat it is unknown, taken as 0, and the freedom is that of the steps.
    """
    squares, freedom = 0.0, 0
    for runs in (ours, theirs):
        medians = [median(run) for run in runs]
        center = _mean(medians)
        squares += sum((value - center) ** 2 for value in medians)
        freedom += len(medians) - 1
    steps = sum(len(run) - 1 for runs in (ours, theirs) for run in runs)
    if not freedom:
        return 0.0, max(1, steps)
    # What the scatter within runs explains of the medians' scatter is not counted a second time.
    every = [*ours, *theirs]
    within = sum(_within(run) for run in every) / len(every)
    variance = squares / freedom
    left = max(0.0, variance - within)
    share = left / variance if variance else 0.0
    return left, freedom if share > 0.5 else max(freedom, steps)


def _within(run: Sequence[float]) -> float:
    """Return the squared standard error of a run's median, robust against single slow steps."""
    center = median(run)
    deviation = MAD_TO_SD * median(abs(value - center) for value in run)
    return (MEDIAN_SE * deviation) ** 2 / len(run)


def _logs(runs: Runs) -> list[list[float]]:
    return [[math.log(s) for s in run if s > 0] for run in runs if any(s > 0 for s in run)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
