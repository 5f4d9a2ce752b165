"""Which steps a probe looks at phase by phase; the others it looks at once, at their end.

On an H200 seven looks at torch's allocator took 0.64 ms of a 144 ms step, and a step whose peak, reserved
bytes and standing bytes stay within what the phases have shown has nothing new to say about them.
"""

from __future__ import annotations

from typing import Final

from recompute.megatron.meters import Peaks

STEADY_LOOKS: Final = 3
"""Steps looked at by phase after the warm-up steps and after the optimizer's states were first seen: as many
as a comparison asks of a run."""
LOOK_EVERY: Final = 17
"""Every so many steps are looked at by phase whatever was seen. A prime, so that what a loop does every 2, 5,
10 or 100 steps falls into these steps too; six looks more every 17 steps are a third of a look a step."""
STATES_WITHIN: Final = 64
"""Steps that are waited, all looked at by phase, for an optimizer's first states. Plain SGD never has any;
FP16's loss scale starts at 2^32 and halves, so that its first update that counts comes within some 30. States
that come later raise what stands after the step, which has the next one looked at by phase."""
_ABSENT: Final = -1


class Looks:
    """What the phases have shown so far, and when they are looked at again.

    Args:
        warmup_steps: Leading steps that are warm-up.
        every_phase: Look at every phase of every step.
    """

    def __init__(self, *, warmup_steps: int, every_phase: bool) -> None:
        self.phase_steps: list[int] = []
        """Steps that were looked at by phase, from 0."""
        self._every = every_phase
        self._until = warmup_steps + STEADY_LOOKS
        self._again = False
        self._shown = [_ABSENT, _ABSENT, _ABSENT]

    def begins(self, step: int, *, awaits_states: bool) -> bool:
        """Say whether a step that begins is looked at by phase.

        Args:
            step: From 0.
            awaits_states: The optimizer is watched, and has no states yet.
        """
        if awaits_states and step < STATES_WITHIN:
            self._until = max(self._until, step + 1 + STEADY_LOOKS)
        by_phase = self._every or self._again or step < self._until or step % LOOK_EVERY == 0
        if by_phase:
            self._again = False
            if self.phase_steps[-1:] != [step]:  # else the step before never ended
                self.phase_steps.append(step)
        return by_phase

    def showed(self, peaks: Peaks, *, standing: bool) -> None:
        """Take what a phase of a step has shown.

        Args:
            peaks: Its peaks.
            standing: Whether what is allocated now outlives the step.
        """
        for index, value in enumerate(_figures(peaks, standing=standing)):
            self._shown[index] = max(value, self._shown[index])

    def saw_whole(self, peaks: Peaks) -> None:
        """Take the peaks of a step that was looked at once: above what was shown, the next is looked at by phase."""
        figures = _figures(peaks, standing=True)
        self._again |= any(now > held for now, held in zip(figures, self._shown, strict=True))

    def forget(self) -> None:
        """Forget what was shown on another device than the model's."""
        self._shown = [_ABSENT, _ABSENT, _ABSENT]


def _figures(peaks: Peaks, *, standing: bool) -> tuple[int, int, int]:
    """Return allocated and reserved peak and standing bytes; what is unknown is below everything."""
    stands = peaks.current if standing else None
    known = (peaks.allocated, peaks.reserved, stands)
    one, two, three = (_ABSENT if value is None else value for value in known)
    return one, two, three
