"""How long a device is busy in a step: says whether the host or the kernels bound it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

MICROSECOND = 1e-6


def kernel_seconds(torch: Any, step: Callable[[], object]) -> float | None:
    """Profile one more step; return the time in which any kernel or copy ran on the device.

    The profiler slows the host down and not the kernels, so the share is taken of the time of steps
    that were not profiled.

    Args:
        torch: The module.
        step: Runs one step.

    Returns:
        Seconds; None without a GPU, or where the profiler saw nothing.
    """
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    cuda = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[cuda]) as profiler:
        step()
        torch.cuda.synchronize()
    busy = covered(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    return busy * MICROSECOND or None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length that intervals cover together: work on several streams counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
