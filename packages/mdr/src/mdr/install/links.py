"""Symbolic links inside a skill become regular copies of what they point at, on every system.

Git stores a link as a small blob that holds the target's path. Windows often cannot create links, and
a checkout there leaves that text in place of the file, which an agent then reads. So the lock records
the link (mode 120000 and the hash of its text) and what is written is a copy of the target's bytes:
the same files everywhere. A link that leaves the folder, loops, or points at nothing is refused.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from mdr.digest import Sha256, sha256
from mdr.errors import Refusal
from mdr.install.portable import tree_problem
from mdr.version.types import FileEntry, FileMode, in_path_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_LINK_BYTES: Final = 4096
MAX_CHAIN: Final = 8
"""Links that lead to links, and links inside linked folders."""
MAX_FILES: Final = 10_000
"""Files after expansion; links to folders multiply."""


def expand_links(
    files: Iterable[FileEntry], read: Callable[[Sha256], bytes | None]
) -> tuple[FileEntry, ...]:
    """Return what is written to disk for a manifest.

    Args:
        files: The manifest, links included.
        read: Gives the bytes of a hash when they are at hand. Without them a link's text is found by
            hashing the ways to write each path of the folder, so that ``verify`` needs the lock alone.

    Returns:
        Regular and executable files only, path order.

    Raises:
        mdr.errors.Refusal: link-unresolved, link-escapes, link-loop, or unportable-path.
    """
    listed = tuple(files)
    if all(file.mode is not FileMode.SYMLINK for file in listed):
        return listed
    texts = {f.path: _text(f, listed, read) for f in listed if f.mode is FileMode.SYMLINK}
    by_path = {file.path: file for file in listed}
    written: dict[str, FileEntry] = {}
    for file in listed:
        for path, source in _follow(file.path, by_path, texts, 0):
            written[path] = FileEntry(
                path=path, mode=source.mode, size=source.size, sha256=source.sha256
            )
            if len(written) > MAX_FILES:
                raise _refuse("link-loop", file.path, f"expands to more than {MAX_FILES} files")
    problem = tree_problem(written)
    if problem:
        raise Refusal("unportable-path", problem.message, data={"reason": problem.reason})
    return in_path_order(written.values())


def _follow(
    path: str, by_path: Mapping[str, FileEntry], texts: Mapping[str, str], depth: int
) -> list[tuple[str, FileEntry]]:
    """Return (path to write, file whose bytes it gets) for one manifest path."""
    if depth > MAX_CHAIN:
        raise _refuse("link-loop", path, f"is more than {MAX_CHAIN} links deep")
    if path not in texts:
        return [(path, by_path[path])]
    goal = _goal(path, texts[path])
    if goal in by_path:
        return _moved(path, goal, _follow(goal, by_path, texts, depth + 1))
    below = [other for other in by_path if other.startswith(f"{goal}/")]
    if not below:
        raise _refuse("link-unresolved", path, f"points at {goal!r}, which is not in the folder")
    found: list[tuple[str, FileEntry]] = []
    for other in below:
        found += _moved(path, goal, _follow(other, by_path, texts, depth + 1))
        if len(found) > MAX_FILES:
            raise _refuse("link-loop", path, f"expands to more than {MAX_FILES} files")
    return found


def _moved(path: str, goal: str, found: list[tuple[str, FileEntry]]) -> list[tuple[str, FileEntry]]:
    """Put what was found at or below ``goal`` at or below ``path``."""
    return [(path + where[len(goal) :], source) for where, source in found]


def _goal(path: str, text: str) -> str:
    goal = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
    if text.startswith("/") or goal == ".." or goal.startswith("../"):
        raise _refuse("link-escapes", path, "points out of the folder")
    if goal == "." or path.startswith(f"{goal}/"):
        raise _refuse("link-loop", path, "points at a folder that holds it")
    return goal


def _text(
    link: FileEntry, files: tuple[FileEntry, ...], read: Callable[[Sha256], bytes | None]
) -> str:
    data = read(link.sha256)
    if data is not None and len(data) <= MAX_LINK_BYTES:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise _refuse("link-unresolved", link.path, "holds no UTF-8 path") from None
    for text in _spellings(link.path, files):
        if sha256(text.encode()) == link.sha256:
            return text
    raise _refuse("link-unresolved", link.path, "points at something the folder does not hold")


def _spellings(path: str, files: tuple[FileEntry, ...]) -> set[str]:
    """Every plain way to write a path from a link to another path or folder of the same tree."""
    base = posixpath.dirname(path)
    goals = {file.path for file in files}
    goals |= {parent for goal in goals for parent in _parents(goal)}
    plain = {posixpath.relpath(goal, base or ".") for goal in goals}
    return plain | {f"./{text}" for text in plain} | {f"{text}/" for text in plain}


def _parents(path: str) -> set[str]:
    segments = path.split("/")
    return {"/".join(segments[:depth]) for depth in range(1, len(segments))}


def _refuse(code: str, path: str, said: str) -> Refusal:
    return Refusal(
        code,
        f"the symbolic link {path!r} {said}",
        hint="ask the author to replace the link by a file",
        data={"path": path},
    )
