"""The parts of a log that matter, out of gigabytes, in constant memory.

A log is read in large chunks and searched for a handful of literals with ``bytes.find``; only the
surroundings of a hit are cut into lines. The head, where configurations are printed, and the tail,
where runs end, are always kept. Lines are numbered by counting newlines, never by splitting. A line
without end is cut into windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from recompute.diagnose.inputs import chunks

CHUNK: Final = 4 << 20
"""Bytes per read."""
HEAD: Final = 1 << 20
TAIL: Final = 512 << 10
MAX_LINE: Final = 64 << 10
"""A longer line is cut."""
BEFORE: Final = 32 << 10
AFTER: Final = 24 << 10
"""Surroundings of a hit, bytes: a traceback before it, wrapped lines and other ranks after it."""
CHUNK_BUDGET: Final = 512 << 10
FILE_BUDGET: Final = 8 << 20
LATE_BUDGET: Final = 4 << 20
"""Excerpt bytes per chunk, per file, and per file for the plain out-of-memory lines after that."""
SAMPLES: Final = 6
"""Progress lines that are looked at per chunk."""
HITS_PER_LITERAL: Final = 400

LITERALS: Final[tuple[bytes, ...]] = (b"emory", b"rror")
"""Every failure's line holds one of these, or a line right beside it does: ``memory``, ``Memory``,
``Error``, ``error``. Each further literal costs a pass over the whole log."""
CONFIG_LITERALS: Final[tuple[bytes, ...]] = (
    b"- arguments -",
    b"ConfigContainer",
    b"Configuration Summary",
)
CONFIG_LIMIT: Final = 256 << 20
"""Bytes within which a run prints its configuration."""
_WANTED: Final = re.compile(
    rb"[Oo]ut[ -]of[ -]memory|OutOfMemory|OUT_OF_MEMORY|allocated memory|allowed memory|allocate memory|shared memory"
    rb"|low on memory|memory pressure|memory allocation retries|memory pool|Theoretical memory|MemoryError|memory in use"
    rb"|[A-Za-z]Error\b|CUDA error|NCCL error|cuda error|Exception\b|CUBLAS_STATUS|Traceback \(|NCCL WARN|OOM|oom[_-]kill|SIGKILL|EXHAUSTED"
    rb"|arguments --|atchdog|ConfigContainer|Configuration Summary|exitcode"
)
"""What a hit must say within its line to be kept."""
STRONG: Final[tuple[bytes, ...]] = (
    b"ut of memory",
    b"OutOfMemory",
    b"CheckpointError",
    b"allowed memory",
    b"CUDA calloc",
    b"CUBLAS_STATUS_A",
)
"""Looked for by themselves where the short literals are too common to follow."""
_SAMPLED: Final = (b" memory (", b" iteration ")

Progress = Callable[[int], None]
"""Called with the bytes (expanded) read so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Some consecutive lines."""

    first_line: int
    data: bytes


class Scanner:
    """One pass over one stream. Feed it chunks in order; it gives excerpts without overlap."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes fed."""
        self.spent = 0
        """Excerpt bytes given out."""
        self._carry = b""
        self._base = 0  # offset of the carry in the stream
        self._lines = 0  # newlines before the carry
        self._done = 0  # offset up to which hits were looked for
        self._emitted = 0  # offset up to which lines were given out
        self._late = 0

    @property
    def lines(self) -> int:
        """Newlines in everything fed, once the last chunk is in."""
        return self._lines

    def feed(self, chunk: bytes, *, last: bool) -> list[Excerpt]:
        """Look through one chunk.

        Args:
            chunk: The next bytes.
            last: Whether the stream ends here.
        """
        buffer = self._carry + chunk if self._carry else chunk
        self.size += len(chunk)
        end = len(buffer) if last else max(len(buffer) - AFTER, 0)
        found = []
        for start, stop in self._intervals(buffer, end, last=last):
            begin = max(_line_start(buffer, start), self._emitted - self._base)
            finish = _line_end(buffer, stop)
            if begin >= finish:
                continue
            number = self._lines + buffer.count(b"\n", 0, begin) + 1
            self._emitted = self._base + finish
            self.spent += finish - begin
            found.append(Excerpt(first_line=number, data=buffer[begin:finish]))
        keep = len(buffer) if last else max(end - max(BEFORE, TAIL), 0)
        self._done = self._base + end
        self._lines += buffer.count(b"\n", 0, keep)
        self._base += keep
        self._carry = buffer[keep:]
        return found

    def _intervals(self, buffer: bytes, end: int, *, last: bool) -> list[tuple[int, int]]:
        """Return the merged surroundings of what matters in ``buffer``."""
        spans: list[tuple[int, int]] = []
        if self._base < HEAD:
            spans.append((0, min(HEAD - self._base, len(buffer))))
        if last:
            spans.append((max(len(buffer) - TAIL, 0), len(buffer)))
        start = max(self._done - self._base, 0)
        if self.spent < FILE_BUDGET:
            spans += self._surroundings(
                buffer, start, end, CHUNK_BUDGET, config=self._base < CONFIG_LIMIT
            )
            spans += _samples(buffer, start, end)
        elif self._late < LATE_BUDGET:
            late = [
                _around(position, len(buffer))
                for position in _positions(STRONG, buffer, start, end)
            ]
            self._late += sum(stop - begin for begin, stop in late)
            spans += late
        return _merge(spans)

    @staticmethod
    def _surroundings(
        buffer: bytes, start: int, end: int, budget: int, *, config: bool
    ) -> list[tuple[int, int]]:
        positions = _hits(buffer, start, end, config=config)
        if len(positions) * AFTER > budget:  # too much to follow: what is certain comes first
            positions = _positions(STRONG, buffer, start, end)[: budget // AFTER] + positions
        spans: list[tuple[int, int]] = []
        for position in positions:
            if any(begin <= position < stop - AFTER // 2 for begin, stop in spans[-2:]):
                continue
            spans.append(_around(position, len(buffer)))
            budget -= AFTER
            if budget <= 0:
                break
        return spans


def excerpts(stream: Any, scanner: Scanner, progress: Progress | None = None) -> Iterator[Excerpt]:
    """Yield the parts of a stream that may matter, in order and without overlap.

    Args:
        stream: Anything with ``read``.
        scanner: Holds what was counted, for the caller.
        progress: Told how many expanded bytes were read.
    """
    waiting: bytes | None = None
    for chunk in chunks(stream, CHUNK):
        if waiting is not None:
            yield from scanner.feed(waiting, last=False)
        waiting = chunk
        if progress is not None:
            progress(scanner.size + len(chunk))
    if waiting is not None:
        yield from scanner.feed(waiting, last=True)


def _hits(buffer: bytes, start: int, end: int, *, config: bool) -> list[int]:
    """Return where a literal stands in a line that says something, in order."""
    found: list[int] = []
    common = False
    for literal in LITERALS:
        position = buffer.find(literal, start, end)
        tried = 0
        while position >= 0 and tried < HITS_PER_LITERAL:
            tried += 1
            wanted = _WANTED.search(buffer, max(position - 40, 0), position + 40) is not None
            if wanted:
                found.append(position)
            position = buffer.find(
                literal, position + (AFTER // 2 if wanted else len(literal)), end
            )
        common = common or position >= 0
    if common:
        found += _positions(STRONG, buffer, start, end)
    if config:
        found += _positions(CONFIG_LITERALS, buffer, start, end)
    return sorted(found)


def _positions(literals: tuple[bytes, ...], buffer: bytes, start: int, end: int) -> list[int]:
    """Return where the literals stand, at most one in each stretch that one excerpt covers."""
    found: list[int] = []
    for literal in literals:
        position = buffer.find(literal, start, end)
        while position >= 0 and len(found) < HITS_PER_LITERAL:
            found.append(position)
            position = buffer.find(literal, position + AFTER // 2, end)
    return found


def _samples(buffer: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Return some progress and memory lines, spread over the buffer."""
    spans = []
    stride = max((end - start) // SAMPLES, 1)
    for literal in _SAMPLED:
        for step in range(SAMPLES):
            position = buffer.find(literal, start + step * stride, end)
            if position < 0:
                break
            spans.append((max(position - 200, 0), min(position + 600, len(buffer))))
    return spans


def _around(position: int, size: int) -> tuple[int, int]:
    return (max(position - BEFORE, 0), min(position + AFTER, size))


def _merge(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _line_start(buffer: bytes, position: int) -> int:
    """Return the start of the line at ``position``, or ``position`` where the line is endless."""
    if position == 0:
        return 0
    newline = buffer.rfind(b"\n", max(position - MAX_LINE, 0), position)
    return newline + 1 if newline >= 0 else position


def _line_end(buffer: bytes, position: int) -> int:
    newline = buffer.find(b"\n", position, position + MAX_LINE)
    return newline + 1 if newline >= 0 else position
