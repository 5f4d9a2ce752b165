"""What the micro-batches in flight hold on one rank while one of its chunks runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from recompute.timeline.schedule import Counts, InFlight
from recompute.timeline.types import Phase
from recompute.timeline.units_of_work import ChunkPeak, Heights


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The chunks of one rank under one choice."""

    peaks: tuple[ChunkPeak, ...]
    held: tuple[int, ...]
    """Bytes that one micro-batch in flight holds on each chunk."""
    corrects: bool
    """Some module holds bytes between steps, or a micro-batch at the front more than those behind."""

    @property
    def left_behind(self) -> int:
        """Bytes that modules hold between steps."""
        return sum(peak.left_behind for peak in self.peaks)

    @property
    def left_copies(self) -> int:
        """Of those, copies of weights, which are counted with the modules' other static bytes already."""
        return sum(peak.left_copies for peak in self.peaks)

    def heights(self, state: InFlight) -> Heights:
        """Return the running chunk's own highest points in a state."""
        peak = self.peaks[state.chunk]
        return peak.later if state.others[state.chunk] else peak.first

    def in_flight(self, counts: Counts) -> int:
        """Return what micro-batches in flight add to the bytes at the step's start.

        Below zero where they hold less than their forward has freed.
        """
        kept = self.kept(counts)
        return kept - self.freed(counts) if self.corrects else kept

    def kept(self, counts: Counts) -> int:
        """Return what micro-batches in flight hold."""
        held = int(sum(map(mul, counts, self.held)))
        if not self.corrects:
            return held
        return held + sum(p.front for p, count in zip(self.peaks, counts, strict=True) if count)

    def freed(self, counts: Counts) -> int:
        """Return what was there at the step's start and is gone once so many are in flight."""
        pairs = zip(self.peaks, counts, strict=True)
        return sum(peak.left_behind for peak, count in pairs if count)

    def held_beside(self, state: InFlight) -> int:
        """Return what modules of the chunks that neither run nor have a micro-batch in flight hold."""
        pairs = zip(self.peaks, state.others, strict=True)
        return sum(
            peak.left_behind
            for index, (peak, count) in enumerate(pairs)
            if index != state.chunk and not count
        )

    def height(self, state: InFlight, phase: Phase) -> int:
        """Return the highest point over the bytes at the step's start while one chunk runs."""
        heights = self.heights(state)
        own = {
            Phase.FORWARD: heights.forward,
            Phase.LOSS: heights.loss,
            Phase.BACKWARD: heights.backward,
        }[phase]
        if not own:
            return 0
        peak = self.peaks[state.chunk]
        here = peak.left_behind if state.others[state.chunk] else 0
        return self.beside(state, phase) + here + own

    def beside(self, state: InFlight, phase: Phase) -> int:
        """Return what the micro-batches beside the running one add to the bytes at the step's start.

        One that runs backward was at the front itself.
        """
        runs_back = phase is Phase.BACKWARD and state.others[state.chunk]
        return self.in_flight(state.others) - (self.peaks[state.chunk].front if runs_back else 0)

    def highest(self, states: Sequence[InFlight], phase: Phase) -> int:
        """Return the highest point over some states."""
        return max((self.height(state, phase) for state in states), default=0)


def load_of(peaks: tuple[ChunkPeak, ...], outputs: tuple[int, ...]) -> Load:
    """Return the load of one rank; ``outputs`` stay with each micro-batch in flight."""
    return Load(
        peaks=peaks,
        held=tuple(p.saved + o for p, o in zip(peaks, outputs, strict=True)),
        corrects=any(peak.left_behind or peak.front for peak in peaks),
    )
