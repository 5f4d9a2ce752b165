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

    def move(self, model: Any) -> bool:
        """Count where a model is; say whether that is elsewhere than what was counted so far."""
        ...

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

    Until the loop has chosen its device nothing is counted: asking CUDA sooner would put every rank of a
    machine on its first GPU.
    """

    name = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device: int | None = None
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
        memory.memory_stats_as_nested_dict = self._seen_by_loop
        self._torch._C._cuda_resetPeakMemoryStats = self._reset_by_loop  # noqa: SLF001

    def stop(self) -> None:
        """Take it away again. Peaks after this are those since the last reset."""
        if self._stats is not None:
            self._torch.cuda.memory.memory_stats_as_nested_dict = self._stats
            self._torch._C._cuda_resetPeakMemoryStats = self._reset  # noqa: SLF001
            self._stats = None

    def move(self, model: Any) -> bool:
        """Count on the device of a model's parameters."""
        chunks = model if isinstance(model, list | tuple) else (model,)
        parameters = (one for chunk in chunks for one in chunk.parameters() if one.is_cuda)
        found = next(parameters, None)
        held = self._known()
        if found is None or found.device.index == held:
            return False
        self._count_on(int(found.device.index))
        return held is not None

    def take(self) -> Peaks:
        """Return the peaks since the last look, and reset them."""
        device = self._known()
        if device is None:
            return Peaks(allocated=None, reserved=None)
        stats = self._last = self._raw(device)
        _raise_to(self._running, stats)
        self._reset(device)
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
        device = self._known()
        current = (
            None if device is None else _figure(self._raw(device), "allocated_bytes", "current")
        )
        return current or 0  # nothing is counted before the first allocation

    def device_used(self) -> int | None:
        """Return total less free bytes, as the driver counts them."""
        device = self._known()
        if device is None:
            return None
        free, total = self._torch.cuda.mem_get_info(device)
        return int(total - free)

    def counts(self) -> tuple[int, int | None]:
        """Return retries since the start, and segments, both at the last look."""
        stats = self._last or {}
        segments = _figure(stats, "segment", "current")
        return max(0, stats.get("num_alloc_retries", 0) - self._retries), segments

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

    def _known(self) -> int | None:
        """Return the device that is counted, once the loop has begun to use CUDA."""
        if self._device is None and self._torch.cuda.is_initialized():
            self._count_on(int(self._torch.cuda.current_device()))
        return self._device

    def _count_on(self, device: int) -> None:
        self._device = device
        self._running.clear()
        self._carried.clear()
        self._retries = self._raw(device).get("num_alloc_retries", 0)

    def _raw(self, device: int) -> dict[str, Any]:
        read = self._stats or self._torch.cuda.memory.memory_stats_as_nested_dict
        stats: dict[str, Any] = read(device)
        return stats

    def _seen_by_loop(self, device: Any = None) -> dict[str, Any]:
        stats: dict[str, Any] = self._stats(device)
        if self._is_counted(device):
            for (kind, pool), peak in self._running.items():
                held = stats.get(kind, {}).get(pool)
                if held is not None:
                    held["peak"] = max(peak, held["peak"])
        return stats

    def _reset_by_loop(self, device: Any) -> None:
        """Reset what the loop sees; what the phase has seen so far is carried over to the probe's look."""
        counted = self._known()
        if counted is not None and self._is_counted(device):
            self._running.clear()
            stats = self._raw(counted)
            for kind in ("allocated_bytes", "reserved_bytes"):
                self._carried[kind] = (
                    _higher(_figure(stats, kind, "peak"), self._carried.get(kind)) or 0
                )
        self._reset(device)

    def _is_counted(self, device: Any) -> bool:
        """Say whether a device, as torch's functions take one, is the one that is counted."""
        if device is None:
            return self._device is not None and self._torch.cuda.current_device() == self._device
        if isinstance(device, int):
            return device == self._device
        index = self._torch.device(device).index
        return self._is_counted(index) if index is not None else self._is_counted(None)


class HostMeter:
    """Counts the process's resident memory: a stand-in for runs without a GPU, and marked as such."""

    name = "host-rss"

    def start(self) -> None:
        """Begin to count."""
        self.take()

    def stop(self) -> None:
        """Do nothing."""

    def move(self, model: Any) -> bool:
        """Say no: there is one host."""
        return False

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


def _raise_to(running: dict[tuple[str, str], int], stats: dict[str, Any]) -> None:
    """Raise running maxima to the peaks of the allocator's statistics: kind, pool -> value."""
    for kind, pools in stats.items():
        if pools.__class__ is not dict:  # one of the plain counts
            continue
        for pool, values in pools.items():
            if values.__class__ is not dict:  # oversize_segments and the like have no pools
                break
            peak = values["peak"]
            if peak > running.get((kind, pool), -1):
                running[kind, pool] = peak


def _figure(stats: dict[str, Any], kind: str, name: str) -> int | None:
    value = stats.get(kind, {}).get("all", {}).get(name)
    return None if value is None else int(value)


def _higher(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
