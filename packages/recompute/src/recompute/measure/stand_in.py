"""What stands in for a control that does not fit: one choice, for the study that repeats it and for what compares.

Only the first run of each candidate counts for its time, so that the repeats of a stand-in do not make
another one of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from recompute.measure.groups import measured
from recompute.measure.row import Outcome
from recompute.measure.seen import seen_otherwise
from recompute.measure.types import Measured, RunGroup

MIN_STEADY: Final = 3
"""Steady steps that every rank of every run must have before a candidate can pass."""


def fits(group: RunGroup) -> bool:
    """Say whether every run of a candidate trained to its end."""
    return all(row.outcome is Outcome.PASS for row in group.rows)


def cheapest_of(groups: Sequence[RunGroup]) -> RunGroup | None:
    """Return the group with the shortest steps of those that trained: the least replay that fits."""
    timed: list[tuple[float, int]] = []
    for number, group in enumerate(groups):
        if not fits(group) or lacking_of(measured(group, None), group) is not None:
            continue
        seconds = measured(replace(group, runs=group.runs[:1]), None).step_seconds
        if seconds is not None:
            timed.append((seconds, number))
    return groups[min(timed)[1]] if timed else None


def lacking_of(figures: Measured, group: RunGroup) -> str | None:
    """Say what a run that did not fail lacks for a verdict."""
    return next(_lacks(figures, group), None)


def _lacks(figures: Measured, group: RunGroup) -> Iterator[str]:
    if not all(row.final for row in group.rows):
        yield "the run has not ended"
    if not all(row.optimizer_initialized for row in group.rows):
        yield "optimizer states were not initialised"
    if figures.steady_steps < MIN_STEADY:
        yield f"{figures.steady_steps} steady step(s), {MIN_STEADY} are needed"
    if any(len(run) < row.world_size for run in group.runs for row in run):
        yield "rows of some ranks are missing"
    if seen_otherwise(group) is not None:
        yield "what ran is not the candidate that was asked for"
    if any(row.growth_bytes_per_step and row.meter == "cuda" for row in group.rows):
        yield "allocation grows with every step, so that its peak is no steady one"
