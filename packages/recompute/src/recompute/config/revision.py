"""Megatron Core revisions in order, and what a version string means.

Sources: tags and pins of NVIDIA/Megatron-LM and NVIDIA-NeMo/Megatron-Bridge (git ls-tree of
3rdparty/Megatron-LM at each Bridge tag).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Revision:
    """One revision that rules speak about.

    ``dev`` is a branch that left main after 0.19; it orders after 0.19 and rules name it explicitly.
    """

    name: str
    """``0.8`` to ``0.19``, ``pin`` (0.20 at 2a75ac12, the pin of Bridge HEAD), ``main``, ``dev``."""

    @property
    def index(self) -> int:
        """Position in :data:`REVISIONS`."""
        return ORDER[self.name]

    def __lt__(self, other: Revision) -> bool:
        """Order by position."""
        return self.index < other.index


NAMES: Final = (
    "0.8",
    "0.9",
    "0.10",
    "0.11",
    "0.12",
    "0.13",
    "0.14",
    "0.15",
    "0.16",
    "0.17",
    "0.18",
    "0.19",
    "pin",
    "main",
    "dev",
)
ORDER: Final = {name: position for position, name in enumerate(NAMES)}
REVISIONS: Final = tuple(Revision(name) for name in NAMES)
NEWEST_RELEASE: Final = Revision("0.19")
