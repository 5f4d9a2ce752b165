"""Can this path exist, once and unchanged, on Linux, macOS and Windows? Asked on every system.

A lock that installs on one machine and not on the next is not a lock, so the strictest rule of the
three systems holds everywhere. Sources: Microsoft, "Naming Files, Paths, and Namespaces"; git's
``verify_path`` and ``core.protectNTFS``/``core.protectHFS`` (git, read-cache.c and path.c).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SEGMENT_BYTES: Final = 255
"""Longest file name on ext4 (UTF-8 bytes); NTFS and APFS allow 255 UTF-16 units or more."""
MAX_PATH_UNITS: Final = 180
"""UTF-16 units below an artifact's folder: Windows' 260 less the drive, a home and an agent's folder."""

_DEVICES: Final = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"}
)
_FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f\x7f]')
_SHORT_GIT = re.compile(r"git~[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathProblem:
    """Why a path is refused."""

    path: str
    reason: str
    """Stable kebab-case name of the rule, one of :data:`REASONS`."""
    message: str


REASONS: Final = {
    "not-relative": "absolute, empty, or with an empty, '.' or '..' segment",
    "not-utf-8": "not valid Unicode",
    "forbidden-character": 'one of < > : " | ? * backslash or a control character (Windows)',
    "reserved-name": "a device name of Windows, whatever its extension",
    "trailing-dot-or-space": "Windows drops it, so two names become one",
    "git-folder": "would be read as a repository's own folder",
    "long-name": f"a segment of more than {MAX_SEGMENT_BYTES} bytes",
    "long-path": f"more than {MAX_PATH_UNITS} UTF-16 units below the folder",
    "collision": "two paths that macOS or Windows cannot tell apart",
    "file-and-folder": "one path is a file and a folder at once",
}
"""Every reason, with what it means; docs/reference/mdr-errors.md lists them."""


def path_problem(path: str) -> PathProblem | None:
    """Return the first rule that ``path`` breaks.

    Args:
        path: Relative path with ``/`` as separator, or a single name.
    """
    reason = _reason(path)
    if reason is None:
        return None
    shown = path.encode("utf-8", "backslashreplace").decode()
    return PathProblem(path=shown, reason=reason, message=f"{shown!r}: {REASONS[reason]}")


def tree_problem(paths: Iterable[str]) -> PathProblem | None:
    """Return the first problem of a set of files that shall lie in one folder.

    Besides each path's own rules: no two spellings that a case-insensitive or normalizing file system
    takes for one, and no path that is a file for one entry and a folder for another.
    """
    spelled: dict[str, str] = {}
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        problem = path_problem(path)
        if problem:
            return problem
        segments = path.split("/")
        if path in files:
            return _clash(path, path)
        files.add(path)
        for depth in range(1, len(segments) + 1):
            prefix = "/".join(segments[:depth])
            other = spelled.setdefault(fold(prefix), prefix)
            if other != prefix:
                return _clash(prefix, other)
            if depth < len(segments):
                folders.add(prefix)
    both = sorted(files & folders)
    if both:
        reason = "file-and-folder"
        return PathProblem(path=both[0], reason=reason, message=f"{both[0]!r}: {REASONS[reason]}")
    return None


def fold(path: str) -> str:
    """Map every spelling that macOS or Windows may take for the same file to one text."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", path).casefold())


def _clash(path: str, other: str) -> PathProblem:
    message = f"{path!r} and {other!r}: {REASONS['collision']}"
    return PathProblem(path=path, reason="collision", message=message)


def _reason(path: str) -> str | None:
    segments = path.split("/")
    if any(segment in {"", ".", ".."} for segment in segments):
        return "not-relative"
    if not path.isascii() and any(0xD800 <= ord(char) <= 0xDFFF for char in path):
        return "not-utf-8"
    if _FORBIDDEN.search(path):
        return "forbidden-character"
    if len(path.encode("utf-16-le")) // 2 > MAX_PATH_UNITS:
        return "long-path"
    for segment in segments:
        reason = _segment_reason(segment)
        if reason:
            return reason
    return None


def _segment_reason(segment: str) -> str | None:
    if segment[-1] in ". ":
        return "trailing-dot-or-space"
    lower = segment.lower()
    if lower.partition(".")[0].rstrip(" ") in _DEVICES:
        return "reserved-name"
    if len(segment.encode()) > MAX_SEGMENT_BYTES:
        return "long-name"
    visible = lower if segment.isascii() else _without_ignorables(lower)
    if visible == ".git" or _SHORT_GIT.fullmatch(visible):
        return "git-folder"
    return None


def _without_ignorables(text: str) -> str:
    """Drop the format characters that HFS+ ignores in names (git, utf8.c, is_hfs_dotgit)."""
    return "".join(char for char in text if unicodedata.category(char) != "Cf")
