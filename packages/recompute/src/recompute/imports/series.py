"""What a run showed over time, whatever it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from recompute.diagnose.training_lines import BRIDGE_GB
from recompute.measure.row import Outcome

MAX_STEPS: Final = 100_000
"""Steps that are kept of a run; the last ones."""

TAGS: Final[Mapping[str, tuple[str, float]]] = {
    "iteration-time": ("seconds", 1.0),
    "mem-max-allocated-bytes": ("max_allocated", 1.0),
    "mem-reserved-bytes": ("reserved", 1.0),
    "mem-allocated-bytes": ("allocated", 1.0),
    "memory/mem-max-allocated-gigabytes": ("max_allocated", BRIDGE_GB),
    "memory/mem-max-reserved-gigabytes": ("max_reserved", BRIDGE_GB),
    "memory/mem-reserved-gigabytes": ("reserved", BRIDGE_GB),
    "memory/mem-allocated-gigabytes": ("allocated", BRIDGE_GB),
    "memory/mem-alloc-retires": ("retries", 1.0),
}
"""TensorBoard tag -> what it is, and its factor to bytes or seconds.

Sources: NVIDIA/Megatron-LM core_v0.16.1 megatron/training/training.py ``training_log``;
NVIDIA-NeMo/Megatron-Bridge v0.2.0 src/megatron/bridge/training/utils/train_utils.py ``training_log`` and
``report_memory`` (GB: 10**9 bytes of five significant digits).
"""


@dataclass(slots=True, kw_only=True)
class RankMemory:
    """Memory of one rank, bytes."""

    max_allocated: int | None = None
    max_reserved: int | None = None
    allocated: int | None = None
    """At the end of the last iteration that was reported."""
    device_used: int | None = None
    retries: int = 0


@dataclass(slots=True, kw_only=True)
class Series:
    """A run over time."""

    source: str
    """``log``, ``tensorboard`` or ``ledger``."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Iteration -> seconds of a step, a mean where the run reported less often."""
    memory: dict[int | None, RankMemory] = field(default_factory=dict)
    """Rank -> its memory; None where the source does not say whose."""
    last: int = 0
    """Highest iteration that was reported."""
    total: int | None = None
    """Iterations that the run was to have."""
    skipped: int | None = None
    nan: int | None = None
    outcome: Outcome | None = None
    """Where the source shows a failure."""
    stage: str | None = None
    message: str | None = None
    notes: list[str] = field(default_factory=list)
    dropped: int = 0
    """Steps that are not kept."""

    def timed(self, iteration: int, seconds: float) -> None:
        """Take the time of a step; a run that was resumed reports some again, the later counts."""
        self.seconds.pop(iteration, None)
        self.seconds[iteration] = seconds
        if len(self.seconds) > MAX_STEPS:
            del self.seconds[next(iter(self.seconds))]
            self.dropped += 1
        self.last = max(self.last, iteration)


def highest(one: int | None, other: int | None) -> int | None:
    """Return the higher of two numbers, either of which may be missing."""
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
