"""What a probe has seen so far of one run on one rank, and the row it makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recompute.measure.row import Outcome, PhaseBytes, Row
from recompute.megatron.growth import Growth
from recompute.megatron.meters import Peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    """Which run a row belongs to."""

    id: str
    candidate: str
    control_id: str | None
    repeat: int
    attempt: int
    rank: int
    world_size: int
    overrides: tuple[str, ...]
    order: int | None = None
    data_seed: int = 0


@dataclass(slots=True, kw_only=True)
class Record:
    """Figures that grow while a run goes on."""

    name: RunName
    meter: str
    warmup_steps: int
    phase_steps: list[int] = field(default_factory=list)
    """Steps that were looked at phase by phase, from 0."""
    peaks: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    kernel_seconds: float | None = None
    device: dict[str, int] = field(default_factory=dict)
    """Phase -> bytes of the whole device that were seen in use at its ends."""
    step_seconds: list[float] = field(default_factory=list)
    static_bytes: int | None = None
    optimizer_initialized: bool = False
    recompute_seen: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    skipped: int = 0
    nonfinite: int = 0
    retries: int = 0
    segments: int | None = None
    probe_seconds: float = 0.0
    warm_probe_seconds: float | None = None
    """Time inside the probe up to the last warm-up step, with what it does once."""
    growth: Growth = field(default_factory=Growth)

    def saw(self, phase: str, peaks: Peaks) -> bool:
        """Take the peaks of a phase and what it leaves; say whether a peak is a new maximum."""
        held = self.peaks.get(phase, (None, None))
        new = (_higher(held[0], peaks.allocated), _higher(held[1], peaks.reserved))
        self.peaks[phase] = new
        if peaks.current is not None:
            self.ends[phase] = max(peaks.current, self.ends.get(phase, 0))
        return new != held

    def forget_peaks(self) -> None:
        """Forget what was seen on another device than the model's."""
        self.peaks.clear()
        self.ends.clear()
        self.device.clear()

    def ended_step(self, allocated: int | None, *, steady: bool) -> None:
        """Take what is allocated at a step's end, and follow whether it grows."""
        self.growth.ended(allocated if steady else None)

    def _steady_probe_seconds(self) -> float | None:
        warm = self.warm_probe_seconds
        return None if warm is None else self.probe_seconds - warm

    def row(self, outcome: Outcome, stage: str | None, message: str | None, *, final: bool) -> Row:
        """Return the row as of now."""
        name = self.name
        return Row(
            id=name.id,
            candidate=name.candidate,
            control_id=name.control_id,
            repeat=name.repeat,
            attempt=name.attempt,
            order=name.order,
            data_seed=name.data_seed,
            rank=name.rank,
            world_size=name.world_size,
            overrides=name.overrides,
            outcome=outcome,
            stage=stage,
            static_bytes=self.static_bytes,
            phases=tuple(
                PhaseBytes(
                    phase=phase,
                    allocated_peak_bytes=allocated,
                    reserved_peak_bytes=reserved,
                    device_peak_bytes=self.device.get(phase),
                    allocated_end_bytes=self.ends.get(phase),
                )
                for phase, (allocated, reserved) in self.peaks.items()
            ),
            step_seconds=tuple(self.step_seconds),
            warmup_steps=min(self.warmup_steps, len(self.step_seconds)),
            phase_steps=tuple(self.phase_steps),
            optimizer_initialized=self.optimizer_initialized,
            recompute_seen=self.recompute_seen,
            environment=self.environment,
            skipped_iterations=self.skipped,
            nan_iterations=self.nonfinite,
            alloc_retries=self.retries,
            segments=self.segments,
            growth_bytes_per_step=self.growth.bytes_per_step,
            probe_seconds=self.probe_seconds,
            probe_steady_seconds=self._steady_probe_seconds(),
            kernel_seconds=self.kernel_seconds,
            meter=self.meter,
            final=final,
            message=message,
        )


def _higher(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
