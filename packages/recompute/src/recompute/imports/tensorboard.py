"""A run from its TensorBoard event files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from recompute.imports.event_file import read_event_file
from recompute.imports.series import TAGS, RankMemory, Series, highest

WHOSE: Final = (
    "event files are written by one rank and do not say which: the memory is that of the writer "
    "(Megatron-LM: the last rank; Bridge: the highest of the writer's pipeline)"
)


def series_of_events(paths: Sequence[str]) -> Series:
    """Read the event files of one run.

    Args:
        paths: In the order of their making.

    Raises:
        InputError: ``cannot-read``; ``bad-event-file``.
    """
    series = Series(source="tensorboard")
    memory = RankMemory()
    for path in paths:
        held = read_event_file(path, TAGS)
        if held.torn:
            series.notes.append("the last record of an event file is not whole")
        for scalar in held.scalars:
            name, factor = TAGS[scalar.tag]
            if scalar.value < 0 or scalar.value * factor > 1 << 50:
                continue
            if name == "seconds":
                series.timed(scalar.step, scalar.value)
            else:
                _take(memory, name, round(scalar.value * factor))
            series.last = max(series.last, scalar.step)
    if memory != RankMemory():
        series.memory[None] = memory
        series.notes.append(WHOSE)
    return series


def _take(memory: RankMemory, name: str, value: int) -> None:
    if name == "max_allocated":
        memory.max_allocated = highest(memory.max_allocated, value)
    elif name in {"max_reserved", "reserved"}:
        memory.max_reserved = highest(memory.max_reserved, value)
    elif name == "allocated":
        memory.allocated = value
    elif name == "retries":
        memory.retries = max(memory.retries, value)
