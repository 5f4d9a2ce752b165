"""Several logs: are they of one run, or of runs that have nothing to do with each other?

The logs of one run differ in the numbers of their names (ranks, nodes) and in what prints them; they tell
one progress, and each rank fails once. Logs that contradict each other in that are of several runs: a
verdict over all of them would mix one run's failure with another one's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from recompute.diagnose.inputs import Source
from recompute.diagnose.observation import Observation

MOST_SHAPES: Final = 200
"""Names of different shape up to which logs are held against each other; more are the ranks of one run."""

_NUMBER: Final = re.compile(r"[0-9]+")
_STREAM: Final = re.compile(r"(?i)(?<![a-z])(?:std)?(?:out|err|log)(?![a-z])")

Failure = tuple[int | None, int | None]
"""Bytes requested and allocated; not the time, which one of two streams may lack."""


@dataclass(slots=True, kw_only=True)
class _Told:
    """What logs tell that no other run would tell in the same way."""

    sources: list[Source] = field(default_factory=list)
    steps: dict[int, float] = field(default_factory=dict)
    """Iteration -> milliseconds."""
    planned: set[int] = field(default_factory=set)
    failures: dict[int, set[Failure]] = field(default_factory=dict)
    """Rank -> its out-of-memory messages."""
    says_something: bool = False

    def contradicts(self, other: _Told) -> bool:
        """Tell whether both cannot be of one run."""
        if self.planned and other.planned and self.planned.isdisjoint(other.planned):
            return True
        if self.steps and other.steps and not self._same_steps(other):
            return True
        both = self.failures.keys() & other.failures.keys()
        return any(self.failures[rank].isdisjoint(other.failures[rank]) for rank in both)

    def repeats(self, other: _Told) -> bool:
        """Tell whether both print the same lines, as a shell's ``tee`` does."""
        both = self.failures.keys() & other.failures.keys()
        same = any(not self.failures[rank].isdisjoint(other.failures[rank]) for rank in both)
        return same or self._same_steps(other)

    def _same_steps(self, other: _Told) -> bool:
        return not self.steps.items().isdisjoint(other.steps.items())

    def add(self, other: _Told) -> None:
        """Take in what further logs of the same run tell."""
        self.sources += other.sources
        self.steps |= other.steps
        self.planned |= other.planned
        for rank, failures in other.failures.items():
            self.failures.setdefault(rank, set()).update(failures)
        self.says_something = self.says_something or other.says_something


def runs_of(sources: tuple[Source, ...], seen: Observation) -> tuple[tuple[Source, ...], ...]:
    """Return the logs of each run; all in one where nothing contradicts that.

    Args:
        sources: Logs.
        seen: What was read in them, all together.
    """
    told = _told(sources, seen)
    shapes: dict[str, list[_Told]] = {}
    for source in sources:
        shapes.setdefault(_shape(source.path), []).append(told[source.path])
    if len(shapes) > MOST_SHAPES:
        return (sources,)
    parts = [part for files in shapes.values() for part in _of_one_shape(files)]
    speaking = [part for part in parts if part.says_something]
    if not any(one.contradicts(other) for one, other in combinations(speaking, 2)):
        return (sources,)
    runs: list[_Told] = []
    for part in speaking:
        same = next((run for run in runs if not run.contradicts(part) and run.repeats(part)), None)
        if same is None:
            runs.append(part)
        else:
            same.add(part)
    return tuple(tuple(run.sources) for run in runs)


def _told(sources: Iterable[Source], seen: Observation) -> dict[str, _Told]:
    told = {source.path: _Told(sources=[source]) for source in sources}
    for file in seen.files:
        mine = told[file.path]
        mine.steps = {step: time for step, time, _ in (*file.steps.first, *file.steps.last)}
        mine.planned = set() if file.steps.planned is None else {file.steps.planned}
        mine.says_something = bool(mine.steps or file.progress_lines)
    for oom in seen.ooms:
        mine = told[oom.place.file]
        mine.says_something = True
        if oom.place.rank is not None:
            failure = (oom.message.requested, oom.message.allocated)
            mine.failures.setdefault(oom.place.rank, set()).add(failure)
    places = [*(event.place for event in seen.events), *(crash.place for crash in seen.crashes)]
    for path in (*(place.file for place in places), *(path for path, _ in seen.memory)):
        told[path].says_something = True
    return told


def _shape(path: str) -> str:
    """Return a path without what tells the logs of one run apart: numbers, and which stream it was."""
    return _STREAM.sub("*", _NUMBER.sub("#", path))


def _of_one_shape(files: list[_Told]) -> list[_Told]:
    """Return one entry, or one for each value of the number in the path that tells attempts apart."""
    if whole := _joined(files):
        return [whole]
    numbers = [_NUMBER.findall(file.sources[0].path) for file in files]
    for column in zip(*numbers, strict=True):
        parts: dict[str, list[_Told]] = {}
        for value, file in zip(column, files, strict=True):
            parts.setdefault(value, []).append(file)
        joined = [_joined(part) for part in parts.values()]
        if all(joined):
            return [part for part in joined if part is not None]
    return files


def _joined(files: list[_Told]) -> _Told | None:
    """Return all as one, or nothing where a rank fails in two of them or their progress differs."""
    joined = _Told()
    for file in files:
        if joined.contradicts(file):
            return None
        joined.add(file)
    return joined
