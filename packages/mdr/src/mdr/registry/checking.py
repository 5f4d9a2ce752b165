"""Check the data folder, and put right what a crash or a bad disk left behind.

What can be wrong, and what ``--repair`` does (never a loss: nothing that is referenced is removed):

================  =======================================================================================
problem           repair
================  =======================================================================================
database          none: SQLite's own check failed; restore a backup, or index again into a new folder
leftover          a temporary file of a run that died: removed
blob-corrupt      read again from the source it came from; kept as it is when the source lacks it
blob-missing      read again from the source it came from
manifest-corrupt  none: the text no longer hashes to its name
manifest-missing  none
================  =======================================================================================

Blobs that no manifest names are not a problem: a run that died before its transaction leaves them, and
the next run finds them by content.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from mdr.digest import Sha256, sha256
from mdr.errors import IntegrityError, MdrError
from mdr.registry.stores import Stores, open_stores, store_lock
from mdr.source.locate import locate
from mdr.source.opening import open_source
from mdr.source.types import Head
from mdr.store.files import FileBlobStore
from mdr.version.manifest import parse_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mdr.settings import Settings
    from mdr.store.blobs import BlobStore

BATCH: Final = 256
"""Blobs that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, or was."""

    problem: str
    what: str
    repaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict."""

    blobs: int
    manifests: int
    versions: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong now."""
        return all(each.repaired for each in self.problems)


def check(settings: Settings, *, repair: bool) -> Checked:
    """Check everything.

    Args:
        settings: The data folder.
        repair: Whether to put right what can be; waits until no indexer runs.

    Raises:
        mdr.errors.StoreError: index-newer, index-unreadable.
    """
    if not settings.data.is_dir() and settings.database is None:
        return Checked(blobs=0, manifests=0, versions=0, problems=())
    with (
        store_lock(settings.data, shared=not repair)
        if _lockable(settings, repair)
        else nullcontext()
    ):
        # Leftovers go first, and without the database: after a full disk it needs their space to open.
        leftovers = tuple(_remove_leftovers(settings.data)) if repair else ()
        stores = open_stores(settings, create=repair)
        if stores is None:
            return Checked(blobs=0, manifests=0, versions=0, problems=leftovers)
        with closing(stores):
            return _Check(stores, settings, repair=repair, problems=leftovers).run()


def _lockable(settings: Settings, repair: bool) -> bool:
    """Say whether there is anything to wait for: nobody indexes into a folder that cannot be written."""
    return repair or os.access(settings.data, os.W_OK)


def _remove_leftovers(data: Path) -> Iterator[Problem]:
    """Remove what dead runs left; the exclusive lock says that no run is alive."""
    for path in FileBlobStore(data).leftovers():
        path.unlink(missing_ok=True)
        yield Problem(problem="leftover", what=path.name, repaired=True)
    for path in sorted((data / "tmp").glob("read-*")):
        shutil.rmtree(path, ignore_errors=True)
        yield Problem(problem="leftover", what=path.name, repaired=True)


def sort_out(blobs: BlobStore, batch: Sequence[Sha256]) -> tuple[dict[Sha256, bytes], list[Sha256]]:
    """Return (bytes of those that are held and sound, those that are corrupt)."""
    try:
        many = blobs.get_many(batch)
    except IntegrityError:
        return _one_by_one(blobs, batch)
    return {digest: data for digest, data in many.items() if data is not None}, []


def _one_by_one(
    blobs: BlobStore, batch: Sequence[Sha256]
) -> tuple[dict[Sha256, bytes], list[Sha256]]:
    """Sort a batch of which one at least is damaged: the others are not lost for it."""
    sound: dict[Sha256, bytes] = {}
    corrupt: list[Sha256] = []
    for digest in batch:
        try:
            data = blobs.get(digest)
        except IntegrityError:
            corrupt.append(digest)
            continue
        if data is not None:
            sound[digest] = data
    return sound, corrupt


class _Check:
    """One pass over the data folder."""

    def __init__(
        self, stores: Stores, settings: Settings, *, repair: bool, problems: tuple[Problem, ...]
    ) -> None:
        self._stores = stores
        self._settings = settings
        self._repair = repair
        self._problems = list(problems)

    def run(self) -> Checked:
        """Check database, blobs, manifests and what they name."""
        from mdr.store.checks import integrity, manifest_bodies, revision_manifests, version_rows

        for words in integrity(self._stores.index.engine):
            self._note("database", words, repaired=False)
        held, bad = self._blobs()
        manifests: set[Sha256] = set()
        needed: dict[Sha256, None] = {}
        for digest, body in manifest_bodies(self._stores.index.engine):
            if sha256(body.encode("utf-8")) != digest:
                self._note("manifest-corrupt", digest, repaired=False)
                continue
            manifests.add(digest)
            needed |= dict.fromkeys(file.sha256 for file in parse_manifest(body))
        versions = 0
        for digest, manifest in version_rows(self._stores.index.engine):
            versions += 1
            needed[digest] = None
            if manifest not in manifests:
                self._note("manifest-missing", manifest, repaired=False)
        for manifest in revision_manifests(self._stores.index.engine):
            if manifest not in manifests:
                self._note("manifest-missing", manifest, repaired=False)
        missing = [digest for digest in needed if digest not in held]
        self._refetch(bad, missing)
        return Checked(
            blobs=len(held),
            manifests=len(manifests),
            versions=versions,
            problems=tuple(self._problems),
        )

    def _note(self, problem: str, what: str, *, repaired: bool) -> None:
        self._problems.append(Problem(problem=problem, what=what, repaired=repaired))

    def _blobs(self) -> tuple[set[Sha256], list[Sha256]]:
        """Hash everything; return what is held and sound, and what is corrupt."""
        held: set[Sha256] = set()
        bad: list[Sha256] = []
        names = self._stores.blobs.digests()
        while batch := list(islice(names, BATCH)):
            sound, corrupt = sort_out(self._stores.blobs, batch)
            held |= sound.keys()
            bad += corrupt
        return held, bad

    def _refetch(self, bad: list[Sha256], missing: list[Sha256]) -> None:
        """Read lost bytes again from git, where the repository still has them."""
        lost = dict.fromkeys([*bad, *missing])
        found = self._read_again(list(lost)) if self._repair and lost else {}
        for digest in lost:
            data = found.get(digest)
            if data is not None:
                if digest in bad:
                    self._stores.blobs.remove(digest)
                self._stores.blobs.put([data])
            name = "blob-corrupt" if digest in bad else "blob-missing"
            self._note(name, digest, repaired=data is not None)

    def _read_again(self, lost: list[Sha256]) -> dict[Sha256, bytes]:
        from mdr.store.checks import object_names

        found: dict[Sha256, bytes] = {}
        for source in self._stores.index.sources():
            names = object_names(self._stores.index.engine, source.id, lost)
            if not names or source.head is None:
                continue
            try:
                head = Head(commit=source.head, branch=None)
                with open_source(locate(source.location), head, self._settings) as reader:
                    present = [
                        oid for oid, size in reader.sizes(list(names)).items() if size is not None
                    ]
                    for _, data in reader.read(present):
                        found[sha256(data)] = data
            except MdrError:
                continue  # the source is gone; another one may have the bytes
        return found
