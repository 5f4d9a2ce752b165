"""Peaks per rank and phase as values (contract: the explain document)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import Assumption
from recompute.model.tape import Link, OpClass


class Phase(StrEnum):
    """Moments of a training step, in order."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    GRAD_SYNC = "grad_sync"
    OPTIMIZER_INIT = "optimizer_init"
    OPTIMIZER_STEP = "optimizer_step"
    GRAPH_CAPTURE = "graph_capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytes:
    """What is allocated at a step's start with optimizer states there. Disjoint."""

    parameters: int
    gradients: int
    optimizer: int
    other: int

    @property
    def total(self) -> int:
        """Sum of the four."""
        return self.parameters + self.gradients + self.optimizer + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """Highest allocation during one phase, static included."""

    phase: Phase
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBytes:
    """Bytes that one owner (a module path, ``gradients``...) holds."""

    owner: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one rank runs a second time in one step, on top of the job without recompute."""

    flops: tuple[tuple[OpClass, int], ...] = ()
    """Floating-point operations by class."""
    traffic: tuple[tuple[OpClass, int], ...] = ()
    """Bytes through device memory by class."""
    comm: tuple[tuple[Link, int], ...] = ()
    """Bytes sent by group."""
    kernels: int = 0
    """Operations launched again, for launch-bound estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """One distinct pipeline position."""

    rank: tuple[tuple[str, int], ...]
    """``(("pp", 0), ("tp", 0), ...)``, pp first."""
    global_ranks: tuple[int, ...]
    static: StaticBytes
    phases: tuple[PhasePeak, ...]
    activation_bytes_after_forward: int
    """What micro-batches hold while most of them are in flight; never below zero."""
    alive_at_peak: tuple[OwnedBytes, ...] = ()
    """Empty unless composition was asked for."""
    peak_range_bytes: tuple[int, int] = (0, 0)
    freed_after_forward: int = 0
    """Static bytes that are gone by then: what modules held since their last forward, and copies of
    weights that the forward of a checkpoint frees. Allocated then: static, less these, and activations."""
    graph_pool_bytes: int = 0
    """Most that pools of CUDA graphs may reserve beyond the allocated peak."""
    step_work: Replay = Replay()
    """Everything this rank runs in one step's forward (replay excluded), same units as Replay."""
    replay: Replay = Replay()

    @property
    def peak(self) -> PhasePeak:
        """The highest phase; the earlier one on a tie."""
        return max(self.phases, key=lambda p: p.peak_bytes)

    @property
    def growth_after_forward(self) -> int:
        """Allocated after forward less static, as a GPU shows it; below zero where more was freed."""
        return self.activation_bytes_after_forward - self.freed_after_forward

    @property
    def activation_bytes_at_peak(self) -> int:
        """Peak without static."""
        return self.peak.peak_bytes - self.static.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one choice does to every rank."""

    choice: RecomputeChoice
    ranks: tuple[RankPeak, ...]
    assumptions: tuple[Assumption, ...] = ()

    @property
    def hot(self) -> RankPeak:
        """The rank with the highest peak; the first one on a tie."""
        return max(self.ranks, key=lambda r: r.peak.peak_bytes)

    @property
    def graph_pool_bytes(self) -> int:
        """Most that pools of CUDA graphs may reserve beyond the allocated peak, on any rank."""
        return max(rank.graph_pool_bytes for rank in self.ranks)
