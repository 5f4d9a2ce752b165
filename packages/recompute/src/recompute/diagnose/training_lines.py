"""The lines that Megatron-LM and Megatron Bridge print while they train.

Sources: NVIDIA/Megatron-LM core_v0.8.0 to core_v0.19.0 ``megatron/training/training.py:training_log``
and ``utils.py:report_memory`` (``memory (MB)``: 2**20 bytes); NVIDIA-NeMo/Megatron-Bridge v0.2.0 to
067f987d ``training/utils/train_utils.py`` (``memory (GB)``: 10**9 bytes, five significant digits),
``training/utils/theoretical_memory_utils.py`` (MB: 2**20 bytes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MEGATRON_MB: Final = 1 << 20
BRIDGE_GB: Final = 10**9

_ITERATION: Final = re.compile(
    r"(?:^|\s)iteration\s+(?P<done>[0-9]{1,9})\s*/\s*(?P<total>[0-9]{1,9})\s*\|(?P<rest>.{0,2000})"
)
_ELAPSED: Final = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]{1,20})")
_SKIPPED: Final = re.compile(r"number of skipped iterations:\s*([0-9]{1,6})")
_NAN: Final = re.compile(r"number of nan iterations:\s*([0-9]{1,6})")
_STEP_TIME: Final = re.compile(r"Step Time : ([0-9.]{1,12})s GPU utilization")
_MEMORY: Final = re.compile(
    r"(?:\[Rank (?P<rank>[0-9]{1,6})\] )?\(?after (?P<done>[0-9]{1,9}) iterations\)? memory \((?P<unit>MB|GB)\) \|(?P<rest>.{0,2000})"
)
_FIELD: Final = re.compile(
    r"\s*(?P<name>[A-Za-z][A-Za-z -]{0,40}):\s*(?P<value>[0-9][0-9.eE+-]{0,30})\s*(?:\||$)"
)
_THEORY: Final = re.compile(
    r"Theoretical memory footprints: weight and optimizer=([0-9.]{1,16}) MB(?:, activation=([0-9.]{1,16}) MB, total=([0-9.]{1,16}) MB)?"
)
_OTHER_STEP: Final = re.compile(
    r"(?:^|[\s\[{'\"(])(?:global_?step|step|iter(?:ation)?|Epoch)['\"]?\s*[:= ]\s*[0-9]{1,12}",
    re.IGNORECASE,
)

_NAMES: Final = {
    "allocated": "allocated",
    "max allocated": "max_allocated",
    "reserved": "reserved",
    "max reserved": "max_reserved",
    "total device memory used": "device_used",
    "mem-allocated-gigabytes": "allocated",
    "mem-max-allocated-gigabytes": "max_allocated",
    "mem-reserved-gigabytes": "reserved",
    "mem-max-reserved-gigabytes": "max_reserved",
    "mem-active-gigabytes": "active",
    "mem-max-active-gigabytes": "max_active",
    "mem-alloc-retires": "retries",
}
"""Name in the log -> our name. ``retires`` is Bridge's spelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLine:
    """One progress line."""

    iteration: int
    total: int | None
    milliseconds: float | None
    skipped: int = 0
    nan: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """One memory line, bytes."""

    rank: int | None
    iteration: int
    allocated: int | None = None
    max_allocated: int | None = None
    reserved: int | None = None
    max_reserved: int | None = None
    device_used: int | None = None
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoreticalLine:
    """What Megatron's own formula says, bytes."""

    states: int
    activations: int | None
    total: int | None


def read_iteration(text: str) -> IterationLine | None:
    """Read a progress line of any generation."""
    match = _ITERATION.search(text)
    if match is None:
        return None
    rest = match["rest"]
    elapsed = _ELAPSED.search(rest)
    return IterationLine(
        iteration=int(match["done"]),
        total=int(match["total"]),
        milliseconds=_number(elapsed[1]) if elapsed else None,
        skipped=_count(_SKIPPED.search(rest)),
        nan=_count(_NAN.search(rest)),
    )


def read_memory(text: str) -> MemoryReport | None:
    """Read a memory line of any generation; MB is 2**20, GB 10**9."""
    match = _MEMORY.search(text)
    if match is None:
        return None
    factor = MEGATRON_MB if match["unit"] == "MB" else BRIDGE_GB
    values: dict[str, int] = {}
    for field in _FIELD.finditer(match["rest"]):
        name = _NAMES.get(field["name"].strip())
        value = _number(field["value"])
        if name is not None and value is not None:
            values[name] = round(value) if name == "retries" else round(value * factor)
    known = ("allocated", "max_allocated", "reserved", "max_reserved", "device_used", "retries")
    return MemoryReport(
        rank=int(match["rank"]) if match["rank"] else None,
        iteration=int(match["done"]),
        **{name: values.get(name) for name in known},
    )


def read_theory(text: str) -> TheoreticalLine | None:
    """Read the theoretical footprint line."""
    match = _THEORY.search(text)
    if match is None:
        return None
    sizes = [
        None if group is None else round((_number(group) or 0.0) * MEGATRON_MB)
        for group in match.groups()
    ]
    return TheoreticalLine(states=sizes[0] or 0, activations=sizes[1], total=sizes[2])


def read_step_seconds(text: str) -> float | None:
    """Read Bridge's ``Step Time`` line, seconds."""
    match = _STEP_TIME.search(text)
    return _number(match[1]) if match else None


def is_other_progress(text: str) -> bool:
    """Tell whether a line looks like another trainer's progress."""
    return _OTHER_STEP.search(text) is not None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e15 else None


def _count(match: re.Match[str] | None) -> int:
    return int(match[1]) if match else 0
