"""What the caching allocator reserves beyond what is allocated: a stated range, never one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorModel:
    """Reserved memory as a multiple of the allocated peak."""

    low: float
    typical: float
    high: float
    source: str


CACHING: Final = AllocatorModel(
    low=1.007,
    typical=1.040,
    high=1.112,
    source="reserved over allocated is 1.007 to 1.093, median 1.040, on 152 ranks of "
    "github.com/MooreThreads/SimuMax 4dcaae51 docs/b200/b200_release_v1.2_summary.json, and 1.021 to "
    "1.112 on our 31 H200 runs, highest with mixtures of experts; runs at a device's limit have been "
    "seen at 1.13 and 1.21 (NVIDIA/Megatron-LM issue 756, Megatron Bridge's Nemotron Super study)",
)
"""PyTorch's default segments."""

EXPANDABLE: Final = AllocatorModel(
    low=1.000,
    typical=1.010,
    high=1.040,
    source="stated: expandable segments are mapped in 2 MiB or 20 MiB pages "
    "(pytorch c10/cuda/CUDACachingAllocator.cpp ExpandableSegment), so what is left is rounding and "
    "a few streams; the upper end is the median without them. Not measured here",
)
"""``expandable_segments:True``."""

VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables that hold the allocator's settings."""


def allocator_of(environment: Mapping[str, str]) -> AllocatorModel:
    """Return the model for the environment that a job exports."""
    for variable in VARIABLES:
        settings = environment.get(variable, "").lower().replace(" ", "").split(",")
        if "expandable_segments:true" in settings:
            return EXPANDABLE
    return CACHING


def reserved_range(peak_bytes: int, model: AllocatorModel) -> tuple[int, int]:
    """Return the range of reserved bytes for an allocated peak."""
    return int(peak_bytes * model.low), int(peak_bytes * model.high)
