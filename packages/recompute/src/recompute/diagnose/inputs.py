"""Opening what the user gave: files, folders, compressed files, standard input. An edge module.

Guarantees: nothing is executed or extracted to disk; a compressed file that expands without end is
refused; a folder is walked without following links to folders.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final

from recompute.errors import InputError, WorldError

MAX_FILES: Final = 20_000
"""Files of one folder; more is a mistake."""
BOMB_FLOOR: Final = 256 << 20
BOMB_RATIO: Final = 600
"""Expanded bytes beyond the floor must not be more than this many times the compressed ones."""
_SKIP: Final = (
    ".pt",
    ".bin",
    ".safetensors",
    ".distcp",
    ".pyc",
    ".so",
    ".npy",
    ".npz",
    ".idx",
    ".whl",
    ".png",
    ".jpg",
    ".svg",
    ".pdf",
    ".py",
    ".metadata",
    ".tar",
    ".zip",
    ".nsys-rep",
    ".qdrep",
    ".sqlite",
    ".html",
)
_SNAPSHOT_HEAD: Final = re.compile(
    rb'\s{0,40}(?:\{\s{0,40}"(?:segments|device_traces|allocator_settings|external_annotations)"'
    rb'|\[\s{0,40}\{\s{0,40}"(?:device|address|total_size)")'
)


class Format(StrEnum):
    """What the first bytes say."""

    TEXT = "text"
    GZIP = "gzip"
    ZSTD = "zstd"
    XZ = "xz"
    BZIP2 = "bzip2"
    PICKLE = "pickle"
    JSON_SNAPSHOT = "json-snapshot"
    LEDGER = "ledger"
    BINARY = "binary"


_MAGIC: Final = (
    (b"\x1f\x8b", Format.GZIP),
    (b"\x28\xb5\x2f\xfd", Format.ZSTD),
    (b"\xfd7zXZ\x00", Format.XZ),
    (b"BZh", Format.BZIP2),
)


PACKED: Final = frozenset({Format.GZIP, Format.ZSTD, Format.XZ, Format.BZIP2})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One input."""

    path: str
    """As shown to people; ``-`` for standard input."""
    format: Format
    size: int
    """Bytes on disk; 0 when unknown."""
    packed: Format | None = None
    """How a snapshot is compressed; a log says so in ``format``."""


def expand(paths: tuple[str, ...]) -> tuple[Source, ...]:
    """Find every input below ``paths``.

    Raises:
        InputError: ``not-found``, ``unreadable``, ``too-many-files``, ``not-a-file``.
    """
    sources: list[Source] = []
    for path in paths:
        if path == "-":
            sources.append(Source(path="-", format=Format.TEXT, size=0))
        elif Path(path).is_dir():
            sources += _folder(path)
        else:
            sources.append(_file(path))
    return tuple(sources)


def _folder(root: str) -> list[Source]:
    folder = Path(root)
    if (folder / "manifest.json").is_file() and (folder / "rows").is_dir():
        return [Source(path=root, format=Format.LEDGER, size=0)]
    found: list[str] = []
    for where, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        found += [
            str(Path(where, name))
            for name in sorted(files, key=_natural)
            if not name.startswith(".") and not name.lower().endswith(_SKIP)
        ]
        if len(found) > MAX_FILES:
            raise InputError(
                "too-many-files",
                f"{root}: more than {MAX_FILES} files",
                hint="give the folder that holds the logs of one run",
                data={"path": root, "limit": MAX_FILES},
            )
    return [
        source
        for source in (_file(path) for path in found if Path(path).is_file())
        if source.format is not Format.BINARY
    ]


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts: list[tuple[int, str]] = []
    digits = ""
    for character in name + "\0":
        if character.isdecimal() and character.isascii():
            digits += character
            continue
        if digits:
            parts.append((int(digits[:18]), ""))
            digits = ""
        parts.append((0, character))
    return tuple(parts)


def _file(path: str) -> Source:
    try:
        with open(path, "rb", opener=_no_block) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                if stat.S_ISFIFO(status.st_mode):
                    return Source(path=path, format=Format.TEXT, size=0)
                raise InputError(
                    "not-a-file",
                    f"{path}: not a file",
                    hint="give a log, a snapshot or a folder",
                    data={"path": path},
                )
            head = stream.read(65536)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    source = Source(path=path, format=sniff(head, path), size=status.st_size)
    return _unpacked(source) if source.format in PACKED else source


def _unpacked(source: Source) -> Source:
    """Look inside a compressed file: a snapshot is a snapshot, everything else is read as a log."""
    stream = open_stream(source)
    try:
        inside = sniff(stream.read(4096) or b"", source.path.rsplit(".", 1)[0])
    except InputError:
        return source  # reading it as a log names what is wrong
    finally:
        stream.close()
    if inside not in {Format.PICKLE, Format.JSON_SNAPSHOT}:
        return source
    return replace(source, format=inside, packed=source.format)


def _no_block(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _unreadable(path: str, error: Exception) -> InputError:
    missing = isinstance(error, FileNotFoundError)
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(
        "not-found" if missing else "unreadable",
        f"{path}: {reason}",
        hint="check the path; a folder of per-rank logs works too",
        data={"path": path},
    )


def sniff(head: bytes, path: str = "") -> Format:
    """Tell the format from the first bytes."""
    for magic, form in _MAGIC:
        if head.startswith(magic):
            return form
    is_pickle = head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5
    if is_pickle or path.lower().endswith((".pickle", ".pkl")):
        return Format.PICKLE
    if _SNAPSHOT_HEAD.match(head) is not None:
        return Format.JSON_SNAPSHOT
    return Format.BINARY if looks_binary(head) else Format.TEXT


def looks_binary(head: bytes) -> bool:
    """Tell whether bytes are noise: NUL bytes or many control characters."""
    sample = head[:8192]
    if not sample:
        return False
    controls = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 or byte == 127 for byte in sample)
    odd = sum(byte >= 128 for byte in sample)
    if odd > len(sample) // 3:
        try:
            sample[: len(sample) - 4].decode("utf-8")
        except UnicodeDecodeError:
            return True
    return controls > len(sample) // 20 or sample.count(0) > len(sample) // 50


def open_stream(source: Source) -> IO[bytes] | Expander:
    """Open an input for reading its expanded bytes."""
    if source.path == "-":
        return sys.stdin.buffer
    try:
        stream = Path(source.path).open("rb", buffering=0)  # noqa: SIM115 - the caller closes it
    except (OSError, ValueError) as error:
        raise _unreadable(source.path, error) from error
    match source.packed or source.format:
        case Format.GZIP:
            return Expander(source.path, stream, _gzip_members())
        case Format.BZIP2:
            import bz2

            return Expander(source.path, stream, _members(bz2.BZ2Decompressor))
        case Format.XZ:
            import lzma

            return Expander(
                source.path, stream, _members(lambda: lzma.LZMADecompressor(memlimit=128 << 20))
            )
        case Format.ZSTD:
            return Expander(source.path, stream, _zstd())
        case _:
            return stream


Expand = Callable[[bytes, int], tuple[bytes, bytes]]
"""(compressed bytes, most expanded bytes) -> (expanded, compressed bytes left over)."""

Expansion = tuple[Expand, Callable[[], bool]]
"""How to expand, and whether what was given so far ends where a member ends."""


class Expander:
    """Reads the expanded bytes of a compressed file, bounded in memory and in ratio."""

    def __init__(self, path: str, stream: IO[bytes], expansion: Expansion) -> None:
        self.path = path
        self.stream = stream
        self.expand, self._whole = expansion
        self.read_bytes = 0
        self.expanded = 0
        self._left = b""
        self._end = False

    def read(self, count: int = -1) -> bytes:
        """Return at most ``count`` expanded bytes; empty at the end."""
        wanted = count if count > 0 else 1 << 20
        while True:
            if not self._left and not self._end:
                self._left = self.stream.read(1 << 18) or b""
                self.read_bytes += len(self._left)
                self._end = not self._left
            if self._end and not self._left:
                return b""
            data, self._left = self._step(wanted)
            self.expanded += len(data)
            if self.expanded > BOMB_FLOOR and self.expanded > BOMB_RATIO * max(self.read_bytes, 1):
                raise InputError(
                    "decompression-bomb",
                    f"{self.path}: expands to more than {BOMB_RATIO} times its size",
                    hint="expand it yourself and give the part that matters",
                    data={"path": self.path, "expanded_bytes": self.expanded},
                )
            if data:
                return data

    def _step(self, wanted: int) -> tuple[bytes, bytes]:
        try:
            return self.expand(self._left, wanted)
        except (zlib.error, EOFError, OSError, ValueError, MemoryError) as error:
            raise _corrupt(self.path, error) from error
        except Exception as error:
            if type(error).__name__ in {"ZstdError", "LZMAError"}:
                raise _corrupt(self.path, error) from error
            raise

    @property
    def cut(self) -> bool:
        """Whether the file ended in the middle of its compressed data."""
        return self._end and self.read_bytes > 0 and not self._whole()

    def tell_compressed(self) -> int:
        """Return how many compressed bytes were read."""
        return self.read_bytes

    def close(self) -> None:
        """Close the file."""
        self.stream.close()


def _corrupt(path: str, error: Exception) -> InputError:
    return InputError(
        "corrupt-archive",
        f"{path}: cannot be expanded: {error}",
        hint="is the file complete? try to expand it with its own program",
        data={"path": path},
    )


def _gzip_members() -> Expansion:
    return _zlib_like(lambda: zlib.decompressobj(wbits=31))


def _zlib_like(make: Callable[[], Any]) -> Expansion:
    state = [make()]

    def expand(data: bytes, wanted: int) -> tuple[bytes, bytes]:
        if state[0].eof:
            if not data.strip(b"\0"):
                return b"", b""
            state[0] = make()
        out = state[0].decompress(data, wanted)
        return out, state[0].unused_data if state[0].eof else state[0].unconsumed_tail

    return expand, lambda: bool(state[0].eof)


def _members(make: Callable[[], Any]) -> Expansion:
    state = [make()]

    def expand(data: bytes, wanted: int) -> tuple[bytes, bytes]:
        if state[0].eof:
            if not data:
                return b"", b""
            state[0] = make()
        out = state[0].decompress(data, wanted)
        while len(out) < wanted and not state[0].eof and not state[0].needs_input:
            more = state[0].decompress(b"", wanted - len(out))
            if not more:
                break
            out += more
        return out, state[0].unused_data if state[0].eof else b""

    return expand, lambda: bool(state[0].eof)


def _zstd() -> Expansion:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            "needs-zstandard",
            "a zstd file needs the zstandard package",
            hint="pip install 'megatron-recompute[zstd]', or expand the file first",
        ) from error
    make = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj
    state = [make()]

    def expand(data: bytes, _wanted: int) -> tuple[bytes, bytes]:
        if state[0].eof:
            state[0] = make()
        piece, rest = data[:1024], data[1024:]
        out = state[0].decompress(piece)
        return out, (state[0].unused_data + rest) if state[0].eof else rest

    return expand, lambda: bool(state[0].eof)


def close(stream: Any) -> None:
    """Close a stream unless it is standard input."""
    if stream is not sys.stdin.buffer:
        stream.close()


def chunks(stream: Any, size: int) -> Iterator[bytes]:
    """Yield non-empty pieces of at most ``size`` bytes, each filled as far as the stream allows."""
    while True:
        parts: list[bytes] = []
        got = 0
        while got < size:
            data = stream.read(size - got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        if got == 0:
            return
        yield parts[0] if len(parts) == 1 else b"".join(parts)


def read_error(path: str, error: OSError) -> WorldError:
    """Name a disk failure."""
    return WorldError(
        "read-failed", f"{path}: {error.strerror or error}", hint="try again", data={"path": path}
    )
