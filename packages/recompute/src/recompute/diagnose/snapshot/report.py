"""One snapshot as an answer: the peak, what is alive there, fragmentation, growth, counterfactuals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from recompute.diagnose.frames import Owner
from recompute.diagnose.snapshot.classify import Classifier
from recompute.diagnose.snapshot.counterfactual import Effect, effects
from recompute.diagnose.snapshot.structure import LIVE, Snapshot
from recompute.diagnose.snapshot.timeline import BEFORE, Allocation, Timeline, build
from recompute.diagnose.types import Stage

MIN_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Tensors of one owner and place that are alive at the peak."""

    owner: str
    where: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """How the segments are used at the end of the recording, bytes."""

    reserved_bytes: int
    allocated_bytes: int
    """By blocks, rounding included."""
    free_in_used_segments_bytes: int
    private_bytes: int
    largest_free_bytes: int
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that stays from step to step."""

    steps: int
    bytes_per_step: int
    where: tuple[Alive, ...]
    """Who holds what was allocated after the first of those steps and is still alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The ``oom`` event of a trace."""

    requested_bytes: int
    device_free_bytes: int | None
    stage: Stage
    owner: Owner
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """What one file shows."""

    path: str
    device: int
    events: int
    peak_bytes: int
    baseline_bytes: int
    peak_stage: Stage
    alive_at_peak: tuple[Alive, ...]
    fragmentation: Fragmentation
    growth: Growth | None
    failure: Failure | None
    effects: tuple[Effect, ...]
    curve: tuple[tuple[int, int], ...]
    """(event, allocated bytes), thinned for a picture; maxima kept."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object."""
        fragments = self.fragmentation
        return {
            "path": self.path,
            "device": self.device,
            "events": self.events,
            "peak_bytes": self.peak_bytes,
            "peak_phase": str(self.peak_stage),
            "baseline_bytes": self.baseline_bytes,
            "alive_at_peak": [_alive(item) for item in self.alive_at_peak],
            "fragmentation": {name: getattr(fragments, name) for name in fragments.__slots__},
            "growth": None
            if self.growth is None
            else {
                "steps": self.growth.steps,
                "bytes_per_step": self.growth.bytes_per_step,
                "where": [_alive(item) for item in self.growth.where],
            },
            "labels": [
                {
                    "label": effect.label,
                    "passes": effect.passes,
                    "discarded_bytes": effect.discarded_bytes,
                    "transient_bytes": effect.transient_bytes,
                    "peak_bytes": effect.peak_bytes,
                    "peak_delta_bytes": effect.peak_delta_bytes,
                }
                for effect in self.effects
            ],
        }


def _alive(item: Alive) -> dict[str, Any]:
    return {"owner": item.owner, "where": item.where, "bytes": item.bytes, "count": item.count}


def report(snapshot: Snapshot) -> SnapshotReport:
    """Account for one snapshot's busiest device."""
    timeline, classifier = build(snapshot), Classifier()
    index = timeline.peak_index
    return SnapshotReport(
        path=snapshot.path,
        device=snapshot.device,
        events=len(timeline.events),
        peak_bytes=timeline.peak,
        baseline_bytes=timeline.baseline,
        peak_stage=_stage_at(timeline, classifier, index),
        alive_at_peak=group(timeline.alive_at(index), classifier),
        fragmentation=fragmentation(snapshot),
        growth=growth(timeline, classifier),
        failure=_failure(timeline, classifier),
        effects=effects(timeline, classifier) if timeline.events else (),
        curve=thinned(timeline.curve),
    )


def group(alive: list[Allocation], classifier: Classifier) -> tuple[Alive, ...]:
    """Sum allocations by owner and place, largest first."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for item in alive:
        reading = classifier.read(item.stack)
        owner = str(reading.owner)
        if (
            reading.stage in {Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP}
            and reading.owner is Owner.OTHER
        ):
            owner = str(Owner.OPTIMIZER)
        elif reading.stage is Stage.MODEL_BUILD and reading.owner is not Owner.GRAD_BUFFER:
            owner = str(Owner.PARAMETERS)
        elif not item.stack:
            owner = "before_recording" if item.start == BEFORE else str(Owner.AUTOGRAD)
        entry = sizes[owner, reading.where]
        entry[0] += item.size
        entry[1] += 1
    rows = [
        Alive(owner=owner, where=where, bytes=size, count=count)
        for (owner, where), (size, count) in sizes.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.owner, row.where)))


def fragmentation(snapshot: Snapshot) -> Fragmentation:
    """Measure how the segments of the busiest device are used."""
    reserved = allocated = holes = private = largest = count = 0
    for segment in snapshot.segments:
        if segment.device != snapshot.device:
            continue
        count += 1
        reserved += segment.size
        live = sum(block.size for block in segment.blocks if block.state == LIVE)
        free = [block.size for block in segment.blocks if block.state == "inactive"]
        allocated += live
        private += segment.size if segment.private else 0
        if live:
            holes += sum(free)
        largest = max([largest, *free])
    return Fragmentation(
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        free_in_used_segments_bytes=holes,
        private_bytes=private,
        largest_free_bytes=largest,
        segments=count,
    )


def growth(timeline: Timeline, classifier: Classifier) -> Growth | None:
    """Compare what is alive at the end of each step; a step ends with the optimizer's last event."""
    ends = step_ends(timeline, classifier)
    if len(ends) < MIN_STEPS:
        return None
    levels = [timeline.curve[end] for end in ends][1:]  # the first step allocates the states
    rises = [after - before for before, after in pairwise(levels)]
    if not rises or min(rises) <= 0:
        return None
    last = len(timeline.events)
    since = [
        item
        for item in timeline.allocations
        if ends[1] < item.start <= ends[-1] and item.end == last
    ]
    return Growth(
        steps=len(levels),
        bytes_per_step=sum(rises) // len(rises),
        where=group(since, classifier)[:8],
    )


def step_ends(timeline: Timeline, classifier: Classifier) -> list[int]:
    """Return the last event of each optimizer step that a forward follows, and of the last one."""
    ends: list[int] = []
    last_step: int | None = None
    for item in timeline.allocations:
        if item.start == BEFORE:
            continue
        reading = classifier.read(item.stack)
        if reading.stage is Stage.OPTIMIZER_STEP or reading.stage is Stage.OPTIMIZER_INIT:
            last_step = item.start
        elif reading.forward and last_step is not None:
            ends.append(item.start - 1)
            last_step = None
    if last_step is not None and timeline.curve:
        ends.append(len(timeline.curve) - 1)
    return ends


def thinned(curve: tuple[int, ...], points: int = 2000) -> tuple[tuple[int, int], ...]:
    """Return at most about ``points`` points of a curve, keeping the maximum of every bucket."""
    width = max(len(curve) // points, 1)
    found = []
    for start in range(0, len(curve), width):
        bucket = curve[start : start + width]
        top = max(bucket)
        found.append((start + bucket.index(top), top))
    return tuple(found)


def _stage_at(timeline: Timeline, classifier: Classifier, index: int) -> Stage:
    if index < 0 or not timeline.events:
        return Stage.UNKNOWN
    return classifier.read(timeline.events[index].stack).stage


def _failure(timeline: Timeline, classifier: Classifier) -> Failure | None:
    for event in timeline.events:
        if event.action == "oom":
            reading = classifier.read(event.stack)
            free = event.device_free if event.device_free is not None else (event.addr or None)
            return Failure(
                requested_bytes=event.size,
                device_free_bytes=free,
                stage=reading.stage,
                owner=reading.owner,
                where=reading.where,
            )
    return None
