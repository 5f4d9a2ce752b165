"""One row of a ledger: what one rank saw of one run (contract: ``recompute.ledger/1``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

MAX_INT: Final = 1 << 62
MAX_STEPS: Final = 1_000_000
WHOLE_STEP: Final = "whole_step"
"""In place of a phase: the peak of steps that were looked at once, and of what the loop does before them. It
overlaps every phase of a step, so that it counts for bytes and names nothing."""


class Outcome(StrEnum):
    """How a run ended."""

    PASS = "pass"
    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    NONFINITE = "nonfinite"


class BadRowError(ValueError):
    """A row breaks the schema; the text says which field and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBytes:
    """Peaks of one phase over all steps, absolute bytes."""

    phase: str
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    device_peak_bytes: int | None = None
    """Highest use of the whole device that was seen, other processes included."""
    allocated_end_bytes: int | None = None
    """Highest allocation at the phase's end: after ``loss``, what forward has saved for backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one rank saw of one run. Sizes in bytes, times in seconds."""

    id: str
    """Names the run; the rows of its ranks share it."""
    candidate: str
    """The recompute choice as text, see :mod:`recompute.measure.candidate`."""
    rank: int
    outcome: Outcome
    control_id: str | None = None
    """``id`` of the control that this run is matched with; its own for a control."""
    repeat: int = 0
    stage: str | None = None
    """Where a run that did not pass ended: a phase, or ``initialization``, ``model_build``, ..."""
    static_bytes: int | None = None
    phases: tuple[PhaseBytes, ...] = ()
    step_seconds: tuple[float, ...] = ()
    """Every step in order, warm-up included."""
    warmup_steps: int = 0
    """Leading steps that are warm-up and count in no average."""
    phase_steps: tuple[int, ...] | None = None
    """Steps, from 0, that were looked at phase by phase; the others are in ``whole_step``. None: not said."""
    optimizer_initialized: bool = False
    recompute_seen: Mapping[str, Any] | None = None
    """What the built model really recomputes, read back from it."""
    overrides: tuple[str, ...] = ()
    """``section.field=value`` by which the run differs from the ledger's job."""
    final: bool = True
    """``false`` on rows written while the run still went on; they stand if it is killed."""
    attempt: int = 0
    order: int | None = None
    """Counts the starts of a study's runs: the order in which they ran."""
    data_seed: int = 0
    """Of the data's order."""
    interrupted: bool = False
    """Ended from outside (a lost node, a preemption): says nothing about the candidate."""
    imported: str | None = None
    """``log`` or ``tensorboard``: read from a run's own reports, not measured by a probe."""
    meter: str = "cuda"
    """What counted the bytes: ``cuda`` (torch's allocator) or ``host-rss``."""
    world_size: int = 1
    job_sha256: str | None = None
    environment: Mapping[str, Any] | None = None
    """Revisions and GPU of this rank, where they are not the manifest's."""
    skipped_iterations: int = 0
    nan_iterations: int = 0
    alloc_retries: int = 0
    segments: int | None = None
    growth_bytes_per_step: int = 0
    """Bytes that a steady step left behind on average: 0 where allocation at the steps' ends is steady."""
    probe_seconds: float = 0.0
    """Time spent inside the probe."""
    probe_steady_seconds: float | None = None
    """Of that, what was spent after the warm-up steps."""
    kernel_seconds: float | None = None
    """How long the device was busy in one step that was profiled after the others."""
    message: str | None = None

    @property
    def steady_seconds(self) -> tuple[float, ...]:
        """Step times without warm-up."""
        return self.step_seconds[self.warmup_steps :]

    @property
    def peak(self) -> PhaseBytes | None:
        """The highest allocation, under the phase that reached most; the earlier one on a tie.

        Where ``whole_step`` is above every phase the bytes are its own, and the phase is still the highest one.
        """
        known = [phase for phase in self.phases if phase.allocated_peak_bytes is not None]
        highest = max(known, key=_allocated, default=None)
        if highest is None or highest.phase != WHOLE_STEP:
            return highest
        named = [phase for phase in known if phase.phase != WHOLE_STEP]
        under = max(named, key=_allocated, default=highest)
        return replace(under, allocated_peak_bytes=highest.allocated_peak_bytes)

    def to_document(self) -> dict[str, Any]:
        """Return the row as JSON types, the contract's fields first."""
        document = {item.name: getattr(self, item.name) for item in fields(self)}
        order = ("id", "candidate", "control_id", "repeat", "rank", "outcome", "stage")
        document["outcome"] = self.outcome.value
        document["phases"] = [
            {item.name: getattr(phase, item.name) for item in fields(phase)}
            for phase in self.phases
        ]
        document["step_seconds"] = [round(second, 7) for second in self.step_seconds]
        document["phase_steps"] = None if self.phase_steps is None else list(self.phase_steps)
        document["overrides"] = list(self.overrides)
        return {name: document[name] for name in order} | document


def _allocated(phase: PhaseBytes) -> int:
    return phase.allocated_peak_bytes or 0


def row_of(document: object) -> Row:
    """Read a row. Fields that this version does not know are left out.

    Raises:
        BadRowError: A field is missing, or of another type, or out of range.
    """
    if not isinstance(document, dict):
        raise BadRowError("not a JSON object")
    known = {item.name for item in fields(Row)}
    for name in ("id", "candidate", "rank", "outcome"):
        if name not in document:
            raise BadRowError(f"{name} is missing")
    values = {
        name: _READERS[name](name, value) for name, value in document.items() if name in known
    }
    row = Row(**values)
    if row.warmup_steps > len(row.step_seconds):
        raise BadRowError("warmup_steps is more than there are step_seconds")
    return row


def _int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_INT:
        raise BadRowError(f"{name} must be a whole number from 0")
    return value


def _optional_int(name: str, value: object) -> int | None:
    return None if value is None else _int(name, value)


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRowError(f"{name} must be a number of seconds")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0.0 <= number < math.inf:
        raise BadRowError(f"{name} must be a finite number of seconds from 0")
    return number


def _optional_seconds(name: str, value: object) -> float | None:
    return None if value is None else _seconds(name, value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 1 << 16:
        raise BadRowError(f"{name} must be text")
    return value


def _optional_text(name: str, value: object) -> str | None:
    return None if value is None else _text(name, value)


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadRowError(f"{name} must be true or false")
    return value


def _mapping(name: str, value: object) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise BadRowError(f"{name} must be an object or null")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_STEPS:
        raise BadRowError(f"{name} must be a list")
    return value


def _outcome(name: str, value: object) -> Outcome:
    try:
        return Outcome(str(value))
    except ValueError:
        allowed = ", ".join(Outcome)
        raise BadRowError(f"{name} {str(value)[:40]!r} is none of {allowed}") from None


def _phases(name: str, value: object) -> tuple[PhaseBytes, ...]:
    found: list[PhaseBytes] = []
    for item in _list(name, value):
        if not isinstance(item, dict):
            raise BadRowError(f"{name} must hold objects")
        phase = _text("phase", item.get("phase"))
        sizes = {size: _optional_int(size, item.get(size)) for size in _SIZES}
        found.append(PhaseBytes(phase=phase, **sizes))
    if len({phase.phase for phase in found}) != len(found):
        raise BadRowError(f"{name} names a phase twice")
    return tuple(found)


_SIZES: Final = (
    "allocated_peak_bytes",
    "reserved_peak_bytes",
    "device_peak_bytes",
    "allocated_end_bytes",
)
_READERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "id": _text,
    "candidate": _text,
    "rank": _int,
    "outcome": _outcome,
    "control_id": _optional_text,
    "repeat": _int,
    "stage": _optional_text,
    "static_bytes": _optional_int,
    "phases": _phases,
    "step_seconds": lambda name, value: tuple(_seconds(name, s) for s in _list(name, value)),
    "warmup_steps": _int,
    "phase_steps": lambda name, value: (
        None if value is None else tuple(_int(name, step) for step in _list(name, value))
    ),
    "optimizer_initialized": _bool,
    "recompute_seen": _mapping,
    "overrides": lambda name, value: tuple(_text(name, s) for s in _list(name, value)),
    "final": _bool,
    "attempt": _int,
    "order": _optional_int,
    "data_seed": _int,
    "interrupted": _bool,
    "imported": _optional_text,
    "meter": _text,
    "world_size": _int,
    "job_sha256": _optional_text,
    "environment": _mapping,
    "skipped_iterations": _int,
    "nan_iterations": _int,
    "alloc_retries": _int,
    "segments": _optional_int,
    "growth_bytes_per_step": _int,
    "probe_seconds": _seconds,
    "probe_steady_seconds": _optional_seconds,
    "kernel_seconds": _optional_seconds,
    "message": _optional_text,
}
