"""What is inside an archive, read from its directory; nothing is ever extracted.

Reading is bounded: members are counted, sizes are taken from the directory, and compressed tar files
are unpacked in memory only up to :data:`MAX_UNPACKED`.
"""

from __future__ import annotations

import bz2
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from stat import S_ISLNK
from typing import Final

from mdr.audit.magic import extension_of

MAX_MEMBERS: Final = 10_000
MAX_UNPACKED: Final = 64 << 20
BOMB_RATIO: Final = 100
BOMB_BYTES: Final = 50 << 20
"""An archive that claims more than this and 100 times its own size is a bomb."""
RUNS: Final = frozenset(
    [
        "exe",
        "dll",
        "so",
        "dylib",
        "sh",
        "bash",
        "bat",
        "cmd",
        "ps1",
        "scr",
        "com",
        "msi",
        "jar",
        "py",
        "js",
        "vbs",
        "app",
        "pkg",
        "deb",
        "rpm",
        "apk",
    ]
)
NESTS: Final = frozenset(
    ["zip", "gz", "tgz", "bz2", "xz", "7z", "rar", "tar", "jar", "whl", "docx", "xlsx", "pptx"]
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing wrong with an archive."""

    rule: str
    why: str


def inspect(data: bytes) -> Iterator[Trouble]:
    """Look at the directory of an archive.

    Args:
        data: The bytes of the archive.

    Yields:
        What is wrong; always at least that its content is not read.
    """
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            yield from _zip(data)
        elif data.startswith(b"PK"):
            yield Trouble("archive-broken", "the directory of the archive is missing")
        else:
            yield from _tar(data)
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError,
        ValueError, NotImplementedError, OverflowError, UnicodeError, IndexError, KeyError,
    ) as problem:  # fmt: skip
        yield Trouble("archive-broken", f"the archive cannot be read: {str(problem)[:80]}")


def _zip(data: bytes) -> Iterator[Trouble]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    yield Trouble("archive", f"{len(members)} members that no text check reads")
    if len(members) > MAX_MEMBERS:
        yield Trouble("archive-bomb", f"{len(members)} members")
    yield from _bomb(sum(member.file_size for member in members), len(data))
    for member in members[:MAX_MEMBERS]:
        yield from _member(member.filename)
        if S_ISLNK(member.external_attr >> 16):
            yield Trouble("archive-symlink", f"symbolic link {member.filename[:80]!r}")
        if member.flag_bits & 1:
            yield Trouble("archive-encrypted", f"encrypted member {member.filename[:80]!r}")


def _tar(data: bytes) -> Iterator[Trouble]:
    plain = _unpacked(data)
    if plain is None:
        yield Trouble("archive-bomb", f"unpacks to more than {MAX_UNPACKED} bytes")
        return
    yield from _bomb(len(plain), len(data))
    if plain[257:262] != b"ustar":
        yield Trouble("archive", "compressed content that no text check reads")
        return
    count = 0
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        for member in archive:
            count += 1
            if count > MAX_MEMBERS:
                yield Trouble("archive-bomb", f"more than {MAX_MEMBERS} members")
                break
            yield from _member(member.name)
            if member.issym() or member.islnk():
                yield Trouble(
                    "archive-symlink", f"link {member.name[:80]!r} to {member.linkname[:80]!r}"
                )
            if member.isdev():
                yield Trouble("archive-traversal", f"device file {member.name[:80]!r}")
    yield Trouble("archive", f"{count} members that no text check reads")


def _bomb(unpacked: int, packed: int) -> Iterator[Trouble]:
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * max(packed, 1):
        yield Trouble("archive-bomb", f"{packed} bytes that claim to unpack to {unpacked}")


def _member(name: str) -> Iterator[Trouble]:
    parts = name.replace("\\", "/").split("/")
    if ".." in parts or name[:1] in {"/", "\\"} or name[1:2] == ":":
        yield Trouble(
            "archive-traversal", f"member {name[:80]!r} leaves the folder it is unpacked into"
        )
    extension = extension_of(name)
    if extension in RUNS:
        yield Trouble("archive-executable", f"program {name[:80]!r} inside an archive")
    if extension in NESTS:
        yield Trouble("archive-nested", f"archive {name[:80]!r} inside an archive")
    if parts[-1].lower() == "vbaproject.bin":
        yield Trouble("macro", "Office macros")


def _unpacked(data: bytes) -> bytes | None:
    """Undo one layer of compression within the bound; ``None`` when it is exceeded."""
    match data[:2]:
        case b"\x1f\x8b":
            plain = zlib.decompressobj(wbits=31).decompress(data, MAX_UNPACKED + 1)
        case b"BZ":
            plain = bz2.BZ2Decompressor().decompress(data, MAX_UNPACKED + 1)
        case b"\xfd7":
            plain = lzma.LZMADecompressor(memlimit=MAX_UNPACKED * 2).decompress(
                data, MAX_UNPACKED + 1
            )
        case _:
            return data
    return plain if len(plain) <= MAX_UNPACKED else None
