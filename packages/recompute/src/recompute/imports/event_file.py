"""Scalars of a TensorBoard event file, read with limits and checksums. An edge module.

The file is a row of records ``length, checksum of it, data, checksum of that``; each record's data is an
``Event`` message, of which three fields matter here. Reading those needs less than the packages that write
them bring, and a file from elsewhere may claim any length.

Sources: tensorflow/tensorboard 2.21.0 tensorboard/summary/writer/record_writer.py ``RecordWriter.write``
(framing, masked CRC-32C), tensorboard/compat/proto/event.proto, summary.proto and tensor.proto (field
numbers), https://protobuf.dev/programming-guides/encoding (wire format).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recompute.errors import InputError

MAX_BYTES: Final = 256 << 20
"""Of a file: scalars of a long run are a tenth of it."""
MAX_RECORD: Final = 16 << 20
MAX_SCALARS: Final = 1_000_000
_HEADER: Final = struct.Struct("<QI")
_CHECK: Final = struct.Struct("<I")
_MASK: Final = 0xA282EAD8
_FLOAT: Final = 1
"""DT_FLOAT."""
_DOUBLE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One value."""

    tag: str
    step: int
    value: float


@dataclass(slots=True, kw_only=True)
class EventFile:
    """What was read of a file."""

    scalars: list[Scalar]
    torn: bool = False
    """The last record is not whole: its writer was killed, or still writes."""


def is_event_file(path: str) -> bool:
    """Say whether a file is named as TensorBoard names them."""
    return ".tfevents." in Path(path).name


def read_event_file(path: str, tags: Collection[str]) -> EventFile:
    """Read the scalars with some tags.

    Args:
        path: The file.
        tags: Which; others are passed over.

    Raises:
        InputError: ``cannot-read``; ``bad-event-file``: not one, damaged, or beyond its limits.
    """
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - a path as the user wrote it
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            "cannot-read",
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="name an event file, or the folder that holds it",
            data={"path": path},
        ) from error
    if len(data) > MAX_BYTES:
        raise _bad(path, 0, f"larger than {MAX_BYTES} bytes")
    return events_of(data, tags, path)


def events_of(data: bytes, tags: Collection[str], path: str) -> EventFile:
    """Read the bytes of an event file.

    Args:
        data: All of them.
        tags: Which scalars; others are passed over.
        path: For messages.

    Raises:
        InputError: ``bad-event-file``.
    """
    found = EventFile(scalars=[])
    for at, record in _records(path, data, found):
        try:
            for scalar in _scalars(record):
                if scalar.tag in tags and math.isfinite(scalar.value):
                    found.scalars.append(scalar)
        except (ValueError, IndexError, struct.error) as error:
            raise _bad(path, at, f"no event: {error}") from error
        if len(found.scalars) > MAX_SCALARS:
            raise _bad(path, at, f"more than {MAX_SCALARS} values")
    return found


def _records(path: str, data: bytes, found: EventFile) -> Iterator[tuple[int, memoryview]]:
    """Yield each record with its place, its checksums compared."""
    view, at = memoryview(data), 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            found.torn = True
            return
        length, check = _HEADER.unpack_from(data, at)
        if masked_crc(view[at : at + 8]) != check:
            raise _bad(path, at, "checksum of a length differs: no event file, or damaged")
        if length > MAX_RECORD:
            raise _bad(path, at, f"a record of {length} bytes, {MAX_RECORD} at most")
        begin = at + _HEADER.size
        end = begin + length
        if end + _CHECK.size > len(data):
            found.torn = True
            return
        if masked_crc(view[begin:end]) != _CHECK.unpack_from(data, end)[0]:
            raise _bad(path, at, "checksum of a record differs: the file is damaged")
        yield at, view[begin:end]
        at = end + _CHECK.size


def masked_crc(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes, turned and shifted as TensorFlow stores it."""
    import google_crc32c

    crc: int = google_crc32c.value(bytes(data))
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _scalars(record: memoryview) -> Iterator[Scalar]:
    """Read an ``Event``: ``step`` = 2, ``summary`` = 5 with ``value`` = 1."""
    step, summaries = 0, []
    for number, value in _fields(record):
        if number == 2 and isinstance(value, int):
            step = value if value < 1 << 63 else 0
        elif number == 5 and isinstance(value, memoryview):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, memoryview):
                yield from _value(value, step)


def _value(message: memoryview, step: int) -> Iterator[Scalar]:
    """Read a ``Summary.Value``: ``tag`` = 1, ``simple_value`` = 2, ``tensor`` = 8."""
    tag, number = "", None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, memoryview):
            tag = bytes(value).decode("utf-8", "replace")
        elif field == 2 and isinstance(value, float):
            number = value
        elif field == 8 and isinstance(value, memoryview):
            number = _tensor(value)
    if number is not None:
        yield Scalar(tag=tag, step=step, value=number)


def _tensor(message: memoryview) -> float | None:
    """Read a ``TensorProto`` of one number: ``dtype`` = 1, ``tensor_content`` = 4, ``float_val`` = 5, ``double_val`` = 6."""
    kind, held = 0, None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in {4, 5, 6} and isinstance(value, memoryview):
            held = bytes(value)
        elif field in {5, 6} and isinstance(value, float):
            return value
    if held is not None and kind == _FLOAT and len(held) == 4:
        return float(struct.unpack("<f", held)[0])
    if held is not None and kind == _DOUBLE and len(held) == 8:
        return float(struct.unpack("<d", held)[0])
    return None


def _fields(message: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    """Yield the fields of a message in wire format, one level deep."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        elif kind == 1:
            yield number, float(struct.unpack_from("<d", message, at)[0])
            at += 8
        elif kind == 5:
            yield number, float(struct.unpack_from("<f", message, at)[0])
            at += 4
        elif kind == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a field is longer than its message")
            yield number, message[at : at + length]
            at += length
        else:
            raise ValueError(f"field of kind {kind}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _bad(path: str, at: int, reason: str) -> InputError:
    return InputError(
        "bad-event-file",
        f"{path}: byte {at}: {reason}",
        hint="give a file that TensorBoard's writers made: events.out.tfevents...",
        data={"path": path, "offset": at},
    )
