"""What counts bytes and time: torch's CUDA allocator, or the process's resident memory without a GPU."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

STATUS: Final = Path("/proc/self/status")
CLEAR: Final = Path("/proc/self/clear_refs")
RESET_PEAK: Final = "5"
"""Written to clear_refs: resets the peak resident size (proc(5), since Linux 4.0)."""

SLOTS: Final = 128
"""Losses on their way to the host: more than the steps that a probe lets run ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Highest bytes since the last look, and those allocated at it."""

    allocated: int | None
    reserved: int | None
    current: int | None = None


class Meter(Protocol):
    """Counts bytes and time for a probe."""

    name: str

    def start(self) -> None:
        """Begin to count."""

    def stop(self) -> None:
        """Leave everything as it was found."""

    def take(self) -> Peaks:
        """Return the peaks since the last look, and begin anew."""
        ...

    def allocated(self) -> int | None:
        """Return the bytes that are allocated now."""
        ...

    def device_used(self) -> int | None:
        """Return the bytes of the whole device that are in use, other processes included."""
        ...

    def counts(self) -> tuple[int, int | None]:
        """Return allocator retries since the start, and segments."""
        ...

    def stamp(self) -> Any:
        """Return a mark in time, in the order of the device's work."""
        ...

    def later(self, value: Any) -> Any:
        """Return what stands for a device's value and can be read without waiting after the next mark."""
        ...

    def seconds(self, first: Any, last: Any, *, wait: bool) -> float | None:
        """Return the time between two marks; None when it is not known yet and must not be waited for."""
        ...

    def snapshot(self, path: Path) -> bool:
        """Write what the allocator holds; say whether there was anything to write."""
        ...


class CudaMeter:
    """Reads torch's caching allocator, resetting its peaks without the loop noticing.

    While it runs, ``torch.cuda.memory_stats`` and everything built on it (``max_memory_allocated``,
    ``max_memory_reserved``, Bridge's and Megatron's memory reports) answer with the running maximum since
    the loop itself last called ``reset_peak_memory_stats``, as if nothing had been reset in between.
    """

    name = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device = torch.cuda.current_device()
        self._running: dict[tuple[str, str], int] = {}
        self._carried: dict[str, int] = {}
        self._retries = 0
        self._last: dict[str, Any] | None = None
        self._slots: Any = None
        self._next = 0
        self._stats: Any = None
        self._reset: Any = None

    def start(self) -> None:
        """Put the running maximum between the allocator and its readers."""
        memory = self._torch.cuda.memory
        self._stats = memory.memory_stats_as_nested_dict
        self._reset = self._torch._C._cuda_resetPeakMemoryStats  # noqa: SLF001 - the one place all resets pass
        self._retries = self._raw().get("num_alloc_retries", 0)
        memory.memory_stats_as_nested_dict = self._seen_by_loop
        self._torch._C._cuda_resetPeakMemoryStats = self._reset_by_loop  # noqa: SLF001

    def stop(self) -> None:
        """Take it away again. Peaks after this are those since the last reset."""
        if self._stats is not None:
            self._torch.cuda.memory.memory_stats_as_nested_dict = self._stats
            self._torch._C._cuda_resetPeakMemoryStats = self._reset  # noqa: SLF001
            self._stats = None

    def take(self) -> Peaks:
        """Return the peaks since the last look, and reset them."""
        stats = self._last = self._raw()
        for kind, pool, peak in _peaks(stats):
            self._running[kind, pool] = max(peak, self._running.get((kind, pool), 0))
        self._reset(self._device)
        carried, self._carried = self._carried, {}
        return Peaks(
            allocated=_higher(
                _figure(stats, "allocated_bytes", "peak"), carried.get("allocated_bytes")
            ),
            reserved=_higher(
                _figure(stats, "reserved_bytes", "peak"), carried.get("reserved_bytes")
            ),
            current=_figure(stats, "allocated_bytes", "current"),
        )

    def allocated(self) -> int | None:
        """Return the bytes of live tensors."""
        current = _figure(self._raw(), "allocated_bytes", "current")
        return current or 0  # nothing is counted before the first allocation

    def device_used(self) -> int | None:
        """Return total less free bytes, as the driver counts them."""
        free, total = self._torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def counts(self) -> tuple[int, int | None]:
        """Return retries since the start, and segments, both at the last look."""
        stats = self._last or self._raw()
        segments = _figure(stats, "segment", "current")
        return stats.get("num_alloc_retries", 0) - self._retries, segments

    def stamp(self) -> Any:
        """Record an event behind the work that was launched so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def later(self, value: Any) -> Any:
        """Copy a tensor's sum, which is finite where all of it is, to the host behind the device's work."""
        if not getattr(value, "is_cuda", False):
            return value
        torch = self._torch
        if self._slots is None:
            self._slots = torch.empty(SLOTS, dtype=torch.float32, pin_memory=True)
        slot = self._slots[self._next % SLOTS]
        self._next += 1
        value = value.detach()
        one = value.reshape(()) if value.numel() == 1 else value.float().sum()
        slot.copy_(one, non_blocking=True)
        return slot

    def seconds(self, first: Any, last: Any, *, wait: bool) -> float | None:
        """Return the device's time between two events."""
        if wait:
            last.synchronize()
        elif not last.query():
            return None
        return float(first.elapsed_time(last)) / 1000.0

    def snapshot(self, path: Path) -> bool:
        """Write a memory snapshot, with history where the loop records one."""
        self._torch.cuda.memory._dump_snapshot(str(path))  # noqa: SLF001 - torch's documented way
        return True

    def _raw(self) -> dict[str, Any]:
        read = self._stats or self._torch.cuda.memory.memory_stats_as_nested_dict
        stats: dict[str, Any] = read(self._device)
        return stats

    def _seen_by_loop(self, device: Any = None) -> dict[str, Any]:
        stats: dict[str, Any] = self._stats(device)
        if device is None or self._index(device) == self._device:
            for kind, pool, peak in _peaks(stats):
                stats[kind][pool]["peak"] = max(peak, self._running.get((kind, pool), 0))
        return stats

    def _reset_by_loop(self, device: Any) -> None:
        """Reset what the loop sees; what the phase has seen so far is carried over to the probe's look."""
        if device is None or self._index(device) == self._device:
            self._running.clear()
            stats = self._raw()
            for kind in ("allocated_bytes", "reserved_bytes"):
                self._carried[kind] = (
                    _higher(_figure(stats, kind, "peak"), self._carried.get(kind)) or 0
                )
        self._reset(device)

    def _index(self, device: Any) -> int:
        return (
            int(device) if isinstance(device, int) else int(self._torch.device(device).index or 0)
        )


class HostMeter:
    """Counts the process's resident memory: a stand-in for runs without a GPU, and marked as such."""

    name = "host-rss"

    def start(self) -> None:
        """Begin to count."""
        self.take()

    def stop(self) -> None:
        """Do nothing."""

    def take(self) -> Peaks:
        """Return the highest resident size since the last look."""
        peak = _status("VmHWM")
        with contextlib.suppress(OSError):
            CLEAR.write_text(RESET_PEAK, encoding="ascii")
        return Peaks(allocated=peak, reserved=peak, current=self.allocated())

    def allocated(self) -> int | None:
        """Return the resident size."""
        return _status("VmRSS")

    def device_used(self) -> int | None:
        """Return nothing: there is no device."""
        return None

    def counts(self) -> tuple[int, int | None]:
        """Return no retries and no segments."""
        return 0, None

    def stamp(self) -> Any:
        """Return the clock."""
        return time.perf_counter()

    def later(self, value: Any) -> Any:
        """Return the value."""
        return value.detach() if hasattr(value, "detach") else value

    def seconds(self, first: Any, last: Any, *, wait: bool) -> float | None:
        """Return the difference."""
        return float(last - first)

    def snapshot(self, path: Path) -> bool:
        """Write nothing."""
        return False


def meter_of(torch: Any) -> Meter:
    """Return the meter for this process."""
    if torch is not None and torch.cuda.is_available():
        return CudaMeter(torch)
    return HostMeter()


def _status(name: str) -> int | None:
    """Return a size of /proc/self/status in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _peaks(stats: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Return every peak of the allocator's statistics: kind, pool, value."""
    return [
        (kind, pool, values["peak"])
        for kind, pools in stats.items()
        if isinstance(pools, dict)
        for pool, values in pools.items()
        if isinstance(values, dict) and "peak" in values
    ]


def _figure(stats: dict[str, Any], kind: str, name: str) -> int | None:
    value = stats.get(kind, {}).get("all", {}).get(name)
    return None if value is None else int(value)


def _higher(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
