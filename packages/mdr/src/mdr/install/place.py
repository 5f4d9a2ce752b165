"""Put verified bytes in their places: staged next to the place, then swapped in one step.

What a kill at any moment leaves at a place is the old folder or the new one, whole. Staging happens in
``.mdr-stage-*`` beside the place (same file system, one level deeper than agents look), and:

* a place that is empty gets the folder by one rename;
* a place that is taken is exchanged with the staged folder by one system call (Linux ``renameat2``,
  macOS ``renamex_np``); where that call is missing (Windows, some network file systems) two renames
  are used, and the next run puts the old folder back if it was stopped between them.

Files are not flushed one by one: after a power cut ``mdr verify`` names what is not there.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mdr.errors import StoreError
from mdr.install.destination import Destination, real_parent
from mdr.install.exchange import exchange
from mdr.version.types import FileEntry, FileMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mdr.digest import Sha256

STAGE_PREFIX: Final = ".mdr-stage-"
BACKUP_FOLDER: Final = ".mdr-backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One place to fill."""

    destination: Destination
    files: tuple[FileEntry, ...]
    """Links already expanded."""
    keep_backup: bool = False
    """Whether what is there now holds bytes that mdr did not write."""


@dataclass(slots=True, kw_only=True)
class _Staged:
    job: Job
    place: Path
    new: Path
    old: Path
    backup: Path | None = None
    swapped: bool = False
    had_old: bool = False


@dataclass(slots=True)
class Placer:
    """Stages every job first, then swaps all of them; a failure in between undoes the swaps."""

    read: Callable[[Sha256], bytes]
    """Gives verified bytes."""
    _stages: dict[Path, Path] = field(default_factory=dict)

    def place(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        """Fill every place or none.

        Returns:
            Where backups were kept, as people see paths.

        Raises:
            mdr.errors.StoreError: place-not-written.
            mdr.errors.Refusal: see :func:`mdr.install.destination.real_parent`.
        """
        staged: list[_Staged] = []
        try:
            staged = [self._stage(job) for job in jobs]
            for item in staged:
                _swap(item)
            return tuple(_keep_backup(item) for item in staged if item.job.keep_backup)
        except OSError as error:
            _undo(staged)
            raise StoreError(
                "place-not-written",
                f"cannot write {error.filename or 'a file'}: {error.strerror}",
                hint="nothing was changed; check permissions and free space",
            ) from error
        except BaseException:
            _undo(staged)
            raise
        finally:
            for stage in self._stages.values():
                shutil.rmtree(stage, ignore_errors=True)

    def _stage(self, job: Job) -> _Staged:
        parent = real_parent(job.destination)
        parent.mkdir(parents=True, exist_ok=True)
        stage = self._stages.get(parent)
        if stage is None:
            stage = parent / f"{STAGE_PREFIX}{secrets.token_hex(6)}"
            for part in ("new", "old", "keep"):
                (stage / part).mkdir(parents=True)
            self._stages[parent] = stage
        if job.keep_backup:
            (stage / "keep" / job.destination.path.name).touch()
        name = job.destination.path.name
        item = _Staged(
            job=job, place=parent / name, new=stage / "new" / name, old=stage / "old" / name
        )
        if job.destination.is_folder:
            self._write_folder(item.new, job.files)
        else:
            self._write_file(item.new, job.files[0])
        return item

    def _write_folder(self, folder: Path, files: Iterable[FileEntry]) -> None:
        folder.mkdir()
        made = {""}
        for file in files:
            above = file.path.rpartition("/")[0]
            if above not in made:
                (folder / above).mkdir(parents=True, exist_ok=True)
                made.add(above)
            self._write_file(folder / file.path, file)

    def _write_file(self, path: Path, file: FileEntry) -> None:
        mode = 0o777 if file.mode is FileMode.EXECUTABLE else 0o666
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(self.read(file.sha256))


def recover(parent: Path) -> None:
    """Clear what a killed run left in ``parent``: put a moved folder back, drop staged bytes.

    Bytes that mdr did not write are never dropped: the killed run left a mark for each place that held
    such bytes, and whatever it left of that name becomes a backup.
    Must be called with the root held (:mod:`mdr.install.exclusive`), so that no live run is touched.
    """
    if not parent.is_dir():
        return
    for stage in sorted(parent.glob(f"{STAGE_PREFIX}*")):
        if stage.is_symlink() or not stage.is_dir():
            continue
        for old in (stage / "old").glob("*"):
            if not os.path.lexists(parent / old.name):
                old.rename(parent / old.name)
        for mark in (stage / "keep").glob("*"):
            for left in (stage / "new" / mark.name, stage / "old" / mark.name):
                if os.path.lexists(left):
                    left.rename(_backup_path(parent, mark.name))
        shutil.rmtree(stage, ignore_errors=True)


def discard(destination: Destination) -> None:
    """Make a place disappear in one rename, then delete what stood there."""
    parent = real_parent(destination)
    stage = parent / f"{STAGE_PREFIX}{secrets.token_hex(6)}"
    stage.mkdir()
    try:
        (parent / destination.path.name).rename(stage / destination.path.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _swap(item: _Staged) -> None:
    item.had_old = os.path.lexists(item.place)
    if not item.had_old:
        item.new.rename(item.place)
    elif exchange(item.new, item.place):
        item.new, item.old = item.old, item.new
    else:
        item.place.rename(item.old)
        item.new.rename(item.place)
    item.swapped = True


def _undo(staged: Iterable[_Staged]) -> None:
    """Bring back what was there, newest swap first; best effort, since the disk already failed."""
    for item in reversed(list(staged)):
        try:
            if item.backup is not None and os.path.lexists(item.backup):
                item.backup.rename(item.old)
            if item.swapped:
                item.place.rename(item.new)
            if os.path.lexists(item.old) and not os.path.lexists(item.place):
                item.old.rename(item.place)
        except OSError:
            continue


def _keep_backup(item: _Staged) -> str:
    """Move what was replaced out of the agent's sight and say where it is now."""
    destination = item.job.destination
    backup = _backup_path(item.place.parent, item.place.name)
    item.old.rename(backup)
    item.backup = backup
    sign = "~/" if destination.scope == "user" else ""
    return sign + Path(os.path.relpath(backup, destination.root)).as_posix()


def _backup_path(parent: Path, name: str) -> Path:
    """Return a free path in the ``.mdr-backup`` beside the agent's folder, which agents do not read.

    For a file at the root itself, such as AGENTS.md, that is the root's own ``.mdr-backup``.
    """
    own = parent.name in {"skills", "rules", "agents", "commands", "prompts", "instructions"}
    folder = (parent.parent if own else parent) / BACKUP_FOLDER
    folder.mkdir(exist_ok=True)
    number = 1
    while os.path.lexists(folder / f"{name}.{number}"):
        number += 1
    return folder / f"{name}.{number}"
