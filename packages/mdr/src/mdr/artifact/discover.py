"""Say of every path what it is, and of everything that is left out, why.

A path can be hostile: it is data from a git tree, where nothing forbids ``..``, control characters or
names that a file system folds together. Nothing here touches a file system.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mdr.artifact.kinds import name_of, near_miss, row_of
from mdr.artifact.types import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterable

BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
INVISIBLE: Final = frozenset("\u00ad\u200b\u200c\u200d\u2060\ufeff")
RESERVED: Final = frozenset(
    [
        "con",
        "prn",
        "aux",
        "nul",
        *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(1, 10)),
    ]
)
FILE_MODES: Final = frozenset({"100644", "100755"})
SYMLINK: Final = "120000"
SUBMODULE: Final = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLimits:
    """Bounds on one path."""

    max_bytes: int = 1_024
    max_depth: int = 64
    """Folders above the file."""


def path_problem(path: str, limits: PathLimits) -> str | None:  # noqa: PLR0911 - one return for each reason
    """Say why a path of a git tree is not served, or ``None`` when it is.

    Args:
        path: With ``surrogateescape`` for bytes that are not UTF-8.
        limits: Bounds on length and depth.

    Returns:
        A reason in words. Names that only Windows or macOS cannot write are served: the bytes are
        the same everywhere, and the installer knows where it stands.
    """
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "the path is not UTF-8"
    if size > limits.max_bytes:
        return f"the path is longer than {limits.max_bytes} bytes"
    segments = path.split("/")
    if len(segments) - 1 > limits.max_depth:
        return f"the path is deeper than {limits.max_depth} folders"
    if any(segment in {"", ".", ".."} for segment in segments):
        return "the path has an empty, '.' or '..' segment"
    if any(segment.casefold() == ".git" for segment in segments):
        return "the path has a '.git' segment"
    if any(segment.startswith("-") for segment in segments):
        return "the path has a segment that looks like an option"
    return _character_problem(path)


def _character_problem(path: str) -> str | None:
    if path.isascii() and path.isprintable() and "\\" not in path:
        return None
    if any(unicodedata.category(char) == "Cc" for char in path):
        return "the path has control characters"
    if "\\" in path:
        return "the path has a backslash, a separator on Windows"
    if not BIDI.isdisjoint(path) or any("\U000e0000" <= char <= "\U000e007f" for char in path):
        return "the path has characters that reorder or hide text"
    if not INVISIBLE.isdisjoint(path):
        return "the path has invisible characters"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A path that looks like an artifact: the artifact, or why it is none."""

    artifact: Artifact | None
    problem: str | None = None


def classify(path: str, *, host: str, repository: str, limits: PathLimits) -> Found | None:
    """Say what the file at ``path`` is.

    Args:
        path: Path in the repository.
        host: Host of the repository.
        repository: ``owner/repo``.
        limits: Bounds on one path.

    Returns:
        ``None`` when no row of the table takes the path and it does not look like a skill.
    """
    row = row_of(path)
    if row is None:
        problem = near_miss(path)
        return None if problem is None else Found(artifact=None, problem=problem)
    problem = path_problem(path, limits)
    if problem is not None:
        return Found(artifact=None, problem=problem)
    name = name_of(path, row, repository)
    return Found(
        artifact=Artifact(host=host, repository=repository, path=path, name=name, kind=row.kind)
    )


def mode_problem(mode: str) -> str | None:
    """Say why a file of this mode cannot be the named file of an artifact."""
    if mode in FILE_MODES:
        return None
    if mode == SYMLINK:
        return "a symbolic link: the file it leads to is indexed under its own path"
    return "a submodule or a mode that git does not give to files"


def link_problem(  # noqa: PLR0911 - one return for each reason
    link: str, target: bytes, present: Iterable[str]
) -> str | None:
    """Say why a symbolic link inside a folder is refused, or ``None`` when it stays inside.

    Args:
        link: Path of the link, relative to the artifact's folder.
        target: What git stores as the link's text.
        present: Every path of the folder, relative to it.

    Returns:
        A reason in words.
    """
    try:
        text = target.decode("utf-8")
    except UnicodeDecodeError:
        return "a symbolic link whose target is not UTF-8"
    if not text or _character_problem(text):
        return "a symbolic link whose target is empty or has odd characters"
    if text.startswith("/") or (len(text) > 1 and text[1] == ":"):
        return "a symbolic link to an absolute path"
    parts = link.split("/")[:-1]
    inward = False
    for segment in text.split("/"):
        if segment == "..":
            if inward:  # behind another link, ".." would not lead where the text says
                return "a symbolic link that goes back out of a folder it entered"
            if not parts:
                return "a symbolic link that leaves the artifact's folder"
            parts.pop()
        elif segment not in {"", "."}:
            inward = True
            parts.append(segment)
    goal = "/".join(parts)
    if goal and not any(path == goal or path.startswith(goal + "/") for path in present):
        return "a symbolic link to a file that does not exist"
    if goal == link or (link + "/").startswith(goal + "/" if goal else "/") or not goal:
        return "a symbolic link that leads back to itself or to a folder around it"
    return None


def collisions(paths: Iterable[str]) -> dict[str, str]:
    """Find paths that a file system without case, or with one Unicode form, cannot tell apart.

    Returns:
        Every path but the first (in byte order) of each colliding group, with the path it meets.
    """
    seen: dict[str, str] = {}
    clash: dict[str, str] = {}
    for path in sorted(paths, key=lambda each: each.encode("utf-8", "surrogateescape")):
        key = path if path.isascii() else unicodedata.normalize("NFC", path)
        first = seen.setdefault(key.casefold(), path)
        if first != path:
            clash[path] = first
    return clash
