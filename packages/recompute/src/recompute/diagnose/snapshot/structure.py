"""A snapshot as values, checked: segments, their blocks, and the trace of every device."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from recompute.diagnose.frames import Frame
from recompute.diagnose.inputs import Format, Source, chunks, open_stream
from recompute.diagnose.snapshot.compact import NO_STACK, Compactor, Stack, TraceEvent
from recompute.diagnose.snapshot.unpickle import PickleMachine, Progress, refuse
from recompute.errors import InputError

MAX_JSON: Final = 1 << 30
"""Bytes; a JSON or compressed snapshot is read whole."""
LIVE: Final = "active_allocated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of a segment."""

    address: int
    size: int
    """Bytes that the allocator counts."""
    requested: int
    state: str
    """``active_allocated``, ``active_pending_free`` or ``inactive``."""
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the device that torch holds."""

    device: int
    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    private: bool
    """Belongs to a CUDA graph's or another private pool."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One file."""

    path: str
    segments: tuple[Segment, ...]
    traces: tuple[tuple[TraceEvent, ...], ...]
    """By device index."""
    settings: Mapping[str, Any]

    @property
    def device(self) -> int:
        """The device with most events, else that of the first segment."""
        busiest = max(range(len(self.traces)), key=lambda index: len(self.traces[index]), default=0)
        if self.traces and self.traces[busiest]:
            return busiest
        return self.segments[0].device if self.segments else 0


def read_snapshot(source: Source, progress: Progress | None = None) -> Snapshot:
    """Read a snapshot file.

    Raises:
        InputError: It is unsafe, corrupt, too large, or no snapshot.
    """
    try:
        if source.format is Format.JSON_SNAPSHOT:
            value = _json(source)
        elif source.packed is not None:
            value = PickleMachine(_expanded(source), source.path, progress).load()
        else:
            with Path(source.path).open("rb") as stream:
                if os.fstat(stream.fileno()).st_size == 0:
                    raise refuse(source.path, "corrupt-pickle", "empty file")
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    value = PickleMachine(data, source.path, progress).load()
    except OSError as error:
        raise refuse(source.path, "unreadable", str(error.strerror or error)) from error
    return from_tree(value, source.path)


def _json(source: Source) -> Any:
    if source.size > MAX_JSON:
        raise refuse(
            source.path,
            "too-large",
            f"a JSON snapshot of more than {MAX_JSON} bytes",
            limit=MAX_JSON,
        )
    compact = Compactor()

    def hook(value: dict[str, Any]) -> Any:
        frames = value.get("frames")
        if isinstance(frames, list):
            value["frames"] = compact.sequence(frames)
        return compact.mapping(value)

    def integer(digits: str) -> int:
        if len(digits) > 40:
            raise ValueError(digits[:40])
        return int(digits)

    data = _expanded(source)
    try:
        return json.loads(data, object_hook=hook, parse_int=integer)
    except (ValueError, RecursionError, MemoryError) as error:
        raise refuse(source.path, "corrupt-snapshot", "not a complete JSON document") from error


def _expanded(source: Source) -> bytes:
    """Return all bytes of a file, expanded, within the limit."""
    stream = open_stream(source)
    parts: list[bytes] = []
    size = 0
    try:
        for part in chunks(stream, 1 << 22):
            parts.append(part)
            size += len(part)
            if size > MAX_JSON:
                raise refuse(
                    source.path,
                    "too-large",
                    f"more than {MAX_JSON} bytes when expanded; expand the file first",
                    limit=MAX_JSON,
                )
    finally:
        stream.close()
    return b"".join(parts)


def from_tree(value: Any, path: str) -> Snapshot:
    """Check a decoded value and return the snapshot.

    Args:
        value: As torch's ``_snapshot()`` returns it, compacted or plain.
        path: Named in errors.
    """
    if isinstance(value, list):
        value = {"segments": value}
    if not isinstance(value, dict) or not isinstance(value.get("segments"), list | tuple):
        raise refuse(path, "not-a-snapshot", "holds no list of segments")
    traces = value.get("device_traces", [])
    settings = value.get("allocator_settings")
    if not isinstance(traces, list | tuple):
        raise refuse(path, "not-a-snapshot", "device_traces is no list")
    try:
        return Snapshot(
            path=path,
            segments=tuple(_segment(item) for item in value["segments"]),
            traces=tuple(_trace(trace) for trace in traces),
            settings=settings if isinstance(settings, dict) else {},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise refuse(
            path,
            "not-a-snapshot",
            f"a part is not as torch writes it ({type(error).__name__}: {error})",
        ) from error


def _segment(item: Any) -> Segment:
    address = _size(item.get("address", 0))
    pool = item.get("segment_pool_id", (0, 0))
    blocks: list[Block] = []
    at = address
    for block in item.get("blocks", ()):
        size = _size(block["size"])
        start = _size(block.get("address", at))
        blocks.append(
            Block(
                address=start,
                size=size,
                requested=_size(block.get("requested_size", size)),
                state=str(block.get("state", "inactive"))[:40],
                stack=_stack(block),
            )
        )
        at = start + size
    return Segment(
        device=_size(item.get("device", 0)),
        address=address,
        size=_size(item["total_size"]),
        stream=_size(item.get("stream", 0)),
        small=item.get("segment_type") == "small",
        expandable=bool(item.get("is_expandable", False)),
        private=tuple(pool) not in {(0, 0), ()},
        blocks=tuple(blocks),
    )


def _stack(block: Any) -> Stack:
    frames = block.get("frames")
    if frames is None:
        history = block.get("history") or ()
        frames = history[0].get("frames", ()) if history and isinstance(history[0], dict) else ()
    if isinstance(frames, list) and all(type(frame) is Frame for frame in frames):
        return tuple(frames)
    return frames if isinstance(frames, tuple) else NO_STACK


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value >= 1 << 64:
        raise ValueError(f"{str(value)[:40]} is no size")
    return value


def _trace(items: Any) -> tuple[TraceEvent, ...]:
    compact = Compactor()
    events = []
    for item in items:
        event = item if type(item) is TraceEvent else _loose(item, compact)
        if event.size < 0:
            raise ValueError("a negative size")
        events.append(event)
    return tuple(events)


def _loose(item: Any, compact: Compactor) -> TraceEvent:
    """Read an event that was not compacted on the way in."""
    frames = item.get("frames") or ()
    if not isinstance(frames, tuple):
        item = {**item, "frames": compact.sequence([compact.mapping(frame) for frame in frames])}
    event = compact.mapping(item)
    if type(event) is not TraceEvent:
        raise ValueError("an event without action and size")
    return event


__all__ = ["Block", "InputError", "Segment", "Snapshot", "from_tree", "read_snapshot"]
