"""The repeated parts of a snapshot, stored once while it is read.

A snapshot holds the same frames hundreds of thousands of times. Frames, stacks, addresses and sizes
are interned as they appear, so that a file of hundreds of megabytes needs about its own size.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from recompute.diagnose.frames import Frame

Stack = tuple[Frame, ...]
"""Innermost frame first, as torch records it."""
NO_STACK: Final[Stack] = ()


class TraceEvent(NamedTuple):
    """One entry of ``device_traces``."""

    action: str
    addr: int
    size: int
    """Bytes as requested."""
    stream: int
    time_us: int
    stack: Stack
    device_free: int | None
    """On ``oom``: what the device said was free, bytes."""


class Compactor:
    """Turns finished dictionaries and lists into interned values."""

    def __init__(self) -> None:
        self._frames: dict[tuple[Any, Any, Any], Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._integers: dict[int, int] = {}

    def mapping(self, value: dict[Any, Any]) -> Any:
        """Return the compact form of a finished dictionary."""
        if "filename" in value and "line" in value and "name" in value:
            return self._frame(value)
        if "action" in value and "size" in value:
            return self._event(value)
        return value

    def sequence(self, value: list[Any]) -> Any:
        """Return the compact form of a finished list: a stack, if it is all frames."""
        if value and type(value[0]) is Frame and set(map(type, value)) == {Frame}:
            key = tuple(map(id, value))
            stack = self._stacks.get(key)
            if stack is None:
                stack = self._stacks[key] = tuple(value)
            return stack
        return value

    def _frame(self, value: dict[Any, Any]) -> Any:
        file, line, name = value["filename"], value["line"], value["name"]
        if not isinstance(file, str) or not isinstance(name, str) or not isinstance(line, int):
            return value
        key = (file, line, name)
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = Frame(file, line, name)
        return frame

    def _event(self, value: dict[Any, Any]) -> Any:
        action, size = value["action"], value["size"]
        addr = value.get("addr", 0)
        free = value.get("device_free")
        numbers = (size, addr, value.get("stream", 0), value.get("time_us", 0))
        if not isinstance(action, str) or not all(isinstance(number, int) for number in numbers):
            return value
        stack = value.get("frames") or NO_STACK
        if isinstance(stack, list):  # a stack of one frame is written as a single item
            stack = self.sequence(stack)
        keep = self._integers.setdefault
        return TraceEvent(
            action,
            keep(addr, addr),
            keep(size, size),
            keep(numbers[2], numbers[2]),
            numbers[3],
            stack if isinstance(stack, tuple) else NO_STACK,
            free if isinstance(free, int) else None,
        )
