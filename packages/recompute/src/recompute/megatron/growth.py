"""Whether steady steps leave memory behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROWTH_STEPS: Final = 4
"""Steps that must leave something behind before it is called growth; so many in a row that leave nothing end it,
so that a leak in every second, third or fourth step is one too."""
GROWTH_BYTES: Final = 64 << 10
"""The least that such a step leaves behind; allocator rounding stays below."""


@dataclass(slots=True, kw_only=True)
class Growth:
    """Follows what is allocated at the ends of steps."""

    _base: int | None = None
    """Where the first step of the rise ended."""
    _top: int = 0
    _steps: int = 0
    """From the base to the top."""
    _level: int = 0
    """Since the top."""
    _grown: int = 0
    """Steps of the rise that left something behind."""

    def ended(self, allocated: int | None) -> None:
        """Take what is allocated at the end of a steady step; None where it is not known or not steady."""
        if allocated is None:
            self._base = None
            return
        change = 0 if self._base is None else allocated - self._top
        if self._base is None or change <= -GROWTH_BYTES:
            self._begin(allocated)
        elif change >= GROWTH_BYTES:
            if not self._grown:  # the steps before say nothing about how often it comes
                self._begin(allocated)
            else:
                self._steps += self._level + 1
            self._grown, self._level, self._top = self._grown + 1, 0, allocated
        else:
            self._level += 1
            if self._level >= GROWTH_STEPS:
                self._begin(allocated)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that a steady step left behind on average; 0 when steady."""
        if self._base is None or self._grown < GROWTH_STEPS:
            return 0
        return (self._top - self._base) // self._steps

    def _begin(self, allocated: int) -> None:
        self._base = self._top = allocated
        self._steps = self._level = self._grown = 0
