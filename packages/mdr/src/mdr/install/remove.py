"""``mdr remove``: take away what mdr wrote, keep what somebody changed, and say which."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.install.destination import destinations, real_parent
from mdr.install.installer import find
from mdr.install.links import expand_links
from mdr.install.place import discard
from mdr.install.tree import Problem, Shape, compare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mdr.digest import Sha256
    from mdr.install.destination import Destination
    from mdr.install.lock import Entry
    from mdr.install.workspace import Workspace
    from mdr.version.types import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One file that was not deleted."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What ``remove`` did."""

    refs: tuple[str, ...]
    kept: tuple[Kept, ...]


def remove(
    workspace: Workspace, entries: tuple[Entry, ...], read: Callable[[Sha256], bytes | None]
) -> Removed:
    """Take entries out of the lock and their files off the disk.

    The lock is written first: a run that is stopped leaves files that no lock names, never a lock that
    names files which are gone.

    Args:
        workspace: Project and home.
        entries: What to remove.
        read: Cached bytes, for links inside skills.
    """
    with workspace.held(entries):
        lock = workspace.lock()
        places: list[tuple[Destination, tuple[FileEntry, ...]]] = []
        for entry in entries:
            expected = expand_links(entry.files, read)
            places += [(place, expected) for place in destinations(entry, workspace.roots)]
            lock = lock.without(entry)
        for place, _ in places:
            real_parent(place)
        workspace.write(lock)
        kept = [kept for place, expected in places for kept in _clear(place, expected)]
    return Removed(refs=tuple(entry.ref for entry in entries), kept=tuple(kept))


def _clear(place: Destination, expected: tuple[FileEntry, ...]) -> list[Kept]:
    found = find(place)
    if found.shape is Shape.ABSENT:
        return []
    if found.shape is not (Shape.FOLDER if place.is_folder else Shape.FILE):
        return [Kept(path=place.shown, why="is not what mdr installed")]
    foreign = {
        difference.path: difference.problem
        for difference in compare(expected, found)
        if difference.problem in {Problem.CHANGED, Problem.EXTRA}
    }
    if not foreign:
        discard(place)
        _prune(place.path.parent, place.root)
        return []
    if place.is_folder:
        _delete_ours(place.path, [path for path in found.files if path not in foreign])
    return [
        Kept(
            path=place.shown_file(path),
            why="changed" if problem is Problem.CHANGED else "not mdr's",
        )
        for path, problem in foreign.items()
    ]


def _delete_ours(folder: Path, paths: list[str]) -> None:
    for path in paths:
        (folder / path).unlink(missing_ok=True)
    above = {folder / path for path in paths}
    above = {up for path in above for up in path.parents if folder in up.parents}
    for up in sorted(above, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):  # not empty: something of the person's is in it
            up.rmdir()


def _prune(folder: Path, root: Path) -> None:
    """Delete the folders that are empty now, as far as the agent's own dot folder."""
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
