"""Which snapshots of a backup folder stay.

A snapshot is complete when its files are what its manifest says and every blob that the index named is in
the folder. Only complete ones are counted, so the newest complete one always stays, and whatever is newer
than the oldest that is kept stays with it.
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from typing import TYPE_CHECKING

from mdr.digest import Sha256
from mdr.errors import MdrError, StoreError
from mdr.registry.archive import archive, snapshots_of
from mdr.store.durable import barrier
from mdr.store.files import FileBlobStore
from mdr.store.locking import hold

if TYPE_CHECKING:
    from pathlib import Path


def prune(root: Path, keep: int) -> tuple[str, ...]:
    """Remove snapshots older than the ``keep`` newest complete ones, and blobs that none left names.

    With fewer complete ones than that nothing goes. A kill in between leaves at most blobs that nobody
    names; the next run removes them.

    Args:
        root: The folder of the backup.
        keep: How many complete snapshots stay; at least one.

    Returns:
        The names of those that were removed.

    Raises:
        mdr.errors.StoreError: store-unwritable.
    """
    assert keep > 0
    try:
        with hold(root / "lock"):
            return _pruned(root, keep)
    except OSError as error:
        raise StoreError(
            "store-unwritable",
            f"old snapshots in {root} cannot be removed: {error.strerror or error}",
            hint="check permissions; the new snapshot is complete",
        ) from error


def _pruned(root: Path, keep: int) -> tuple[str, ...]:
    store = FileBlobStore(root)
    every = snapshots_of(root)
    named = {each: _named(root, each) for each in every}
    complete = [each for each in every if _is_complete(store, named[each])]
    if len(complete) < keep:
        return ()
    gone = [each for each in every if each < complete[-keep]]
    for each in gone:
        part = each.with_name(f"{each.name}.part")  # never half a snapshot under its own name
        each.rename(part)
        shutil.rmtree(part)
    barrier(root, (), [root / "snapshots"])
    left = [named[each] for each in every if each not in gone]
    wanted = {digest for each in left if each is not None for digest in each[0]}
    if None not in left:  # what a damaged one needs cannot be known
        for digest in [each for each in store.digests() if each not in wanted]:
            store.remove(digest)
    return tuple(each.name for each in gone)


def _is_complete(store: FileBlobStore, named: tuple[frozenset[Sha256], bool] | None) -> bool:
    return named is not None and named[1] and all(map(store.has, named[0]))


def _named(root: Path, snapshot: Path) -> tuple[frozenset[Sha256], bool] | None:
    """Return the blobs that a snapshot names and whether none was lost; ``None``: it is damaged."""
    try:
        with archive(root, snapshot.name) as opened:
            for name in opened.manifest["files"]:
                opened.file(name)
            words = gzip.decompress(opened.file("blobs.gz")).decode("ascii").split()
            return frozenset(map(Sha256, words)), not opened.manifest["missing"]
    except (MdrError, OSError, EOFError, ValueError, KeyError, zlib.error):
        return None
