"""Verdicts from measurements over time and over ranks: growth, thrash, skew."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from recompute.diagnose.events import Kind
from recompute.diagnose.finding import Finding, is_moe, judged, stage_of_failure
from recompute.diagnose.observation import Observation, Place
from recompute.diagnose.training_lines import MemoryReport
from recompute.diagnose.types import Stage, Verdict
from recompute.units import GIB, MIB, format_gib

MIN_GROWTH: Final = 256 * MIB
MIN_POINTS: Final = 4
SLOWDOWN: Final = 2.0
CARD_SIZES: Final = (
    39.4,
    39.6,
    79.1,
    79.3,
    79.6,
    94.5,
    139.8,
    140.1,
    178.4,
    179.1,
    184.3,
    186.0,
    191.5,
    268.6,
    276.6,
)
"""Total memory of data-centre GPUs as CUDA reports it, GiB."""


def growth(seen: Observation) -> Finding | None:
    """Allocated memory that rises from step to step in the reports."""
    for (_, rank), series in sorted(seen.memory.items(), key=lambda item: str(item[0])):
        points = [(report, place) for report, place in series if report.allocated is not None]
        if len(points) < MIN_POINTS:
            continue
        grown = steady_growth([report for report, _ in points])
        if grown is None:
            continue
        verdict, rule = (
            (Verdict.IMBALANCE, "skewed-ranks")
            if is_moe(seen) and _only_some_grow(seen)
            else (Verdict.LEAK, "growth")
        )
        oom = judged(seen)
        return Finding(
            rule=rule,
            verdict=verdict,
            stage=stage_of_failure(seen, oom),
            places=(points[-1][1], points[0][1]),
            oom=oom,
            rank=rank,
            summary=f"allocated memory rose by {format_gib(grown)} between iterations {points[0][0].iteration} and {points[-1][0].iteration}, step after step",
        )
    return None


def thrash(seen: Observation) -> Finding | None:
    """Reserved at the limit and slow steps, without an error."""
    if seen.ooms or seen.of_kind(Kind.NON_TORCH, Kind.DRIVER):
        return None
    retries = seen.of_kind(Kind.RETRY)
    reports = [(report, place) for series in seen.memory.values() for report, place in series]
    retried = [(report, place) for report, place in reports if report.retries]
    full = [(report, place) for report, place in reports if _at_limit(report)]
    slow = slowest_share(seen)
    if retries:
        return Finding(
            rule="allocation-retries",
            verdict=Verdict.THRASH,
            stage=Stage.UNKNOWN,
            places=(retries[0].place,),
            rank=retries[0].place.rank,
            summary="the allocator frees and re-maps its cache while it trains",
        )
    if retried:
        return Finding(
            rule="allocation-retries",
            verdict=Verdict.THRASH,
            places=(retried[-1][1],),
            rank=retried[-1][0].rank,
            summary=f"{retried[-1][0].retries} allocation retries are reported",
        )
    if full and slow is not None:
        return Finding(
            rule="reserved-at-limit",
            verdict=Verdict.THRASH,
            places=(full[-1][1], slow[1]),
            rank=full[-1][0].rank,
            summary=f"memory is at the card's limit and steps are up to {slow[0]:.1f} times slower; no error is printed",
        )
    return None


def steady_growth(reports: list[MemoryReport]) -> int | None:
    """Return by how much ``allocated`` grew if it grew in nearly every report; bytes."""
    values = [report.allocated or 0 for report in reports[1:]]  # the first step allocates states
    if len(values) < MIN_POINTS - 1:
        return None
    rises = sum(after > before for before, after in pairwise(values))
    total = values[-1] - values[0]
    if rises >= 0.8 * (len(values) - 1) and total > max(MIN_GROWTH, values[0] // 50):
        return total
    return None


def _only_some_grow(seen: Observation) -> bool:
    grown = [
        steady_growth([report for report, _ in series]) is not None
        for series in seen.memory.values()
        if len(series) >= MIN_POINTS
    ]
    return len(grown) >= 2 and not all(grown)


def slowest_share(seen: Observation) -> tuple[float, Place] | None:
    """Return how many times slower the slow steps are than the fast ones, if at least twice."""
    by_file: dict[str, list[tuple[float, Place]]] = defaultdict(list)
    for file in seen.files:
        steps = file.steps.first[1:] + file.steps.last
        by_file[file.path] += [(milliseconds, place) for _, milliseconds, place in steps]
    steps_all = [entry for entries in by_file.values() for entry in entries]
    if len(steps_all) < MIN_POINTS:
        return None
    ordered = sorted(steps_all, key=lambda entry: entry[0])
    fast, slow = ordered[len(ordered) // 10], ordered[(len(ordered) * 9) // 10]
    if fast[0] > 0 and slow[0] / fast[0] >= SLOWDOWN:
        return slow[0] / fast[0], slow[1]
    return None


def _at_limit(report: MemoryReport) -> bool:
    used = max(report.device_used or 0, report.max_reserved or 0)
    return any(0.93 * card <= used / GIB <= card * 1.01 for card in CARD_SIZES)
