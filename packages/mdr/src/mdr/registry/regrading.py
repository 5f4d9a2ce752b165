"""Grade what was published before a ruleset was: by ``index``, and for a reader that cannot wait.

A new ruleset is a new row, old grades stay. The bytes are in the blob store, so that nothing is fetched,
and versions that a force-push took off the line get their grade too.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from mdr.artifact.types import Kind
from mdr.errors import IntegrityError
from mdr.registry.harvest import SMALL, each_result, executor, grade
from mdr.registry.stores import source_lock, store_lock
from mdr.store.files import FileBlobStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mdr.digest import Sha256
    from mdr.registry.harvest import Progress
    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.store.rows import Grade, SourceRow
    from mdr.version.types import Version

    File = tuple[Sha256, Kind]


def regrade(
    stores: Stores, source: SourceRow, ruleset: str, settings: Settings, progress: Progress
) -> int:
    """Grade every version of a repository that ``ruleset`` has not graded yet, and keep the grades.

    Returns:
        How many files could not be graded, because their bytes are lost or damaged.

    Raises:
        mdr.errors.StoreError: index-unreadable, store-unwritable.
    """
    from mdr.store.engine import writing
    from mdr.store.recording import save_grades

    with (
        source_lock(settings.data, source.host, source.repository),
        store_lock(settings.data, shared=True),
    ):
        files = stores.index.ungraded(source.id, ruleset)
        grades = _grades(stores, files, ruleset, settings.workers or os.cpu_count() or 1, progress)
        if grades:
            with writing(stores.index.engine) as connection:
                save_grades(connection, grades)
    return len(files) - len(grades)


def graded_now(
    stores: Stores, kind: Kind, versions: Iterable[Version], ruleset: str
) -> tuple[Version, ...]:
    """Fill in the grades that the index lacks, without writing; lost bytes leave theirs unknown."""
    blobs, done = stores.blobs, []
    for version in versions:
        found = None if version.grade else _grade(blobs, version.sha256, kind, ruleset)
        done.append(version if found is None else replace(version, grade=found.grade))
    return tuple(done)


def _grades(
    stores: Stores, files: Sequence[File], ruleset: str, workers: int, progress: Progress
) -> list[Grade]:
    stores.index.engine.dispose()  # no connection may be shared with the processes started now
    pieces = [files[start : start + SMALL] for start in range(0, len(files), SMALL)]
    jobs = [(stores.data, piece, ruleset) for piece in pieces]
    grades: list[Grade] = []
    with executor(len(files), workers) as pool:
        for each in each_result(pool, _grade_piece, jobs):
            grades += each
            progress(f"auditing by {ruleset}", len(grades), len(files))
    return grades


def _grade_piece(root: Path, files: Sequence[File], ruleset: str) -> list[Grade]:
    blobs = FileBlobStore(root)
    found = (_grade(blobs, digest, kind, ruleset) for digest, kind in files)
    return [each for each in found if each is not None]


def _grade(blobs: FileBlobStore, digest: Sha256, kind: Kind, ruleset: str) -> Grade | None:
    try:
        data = blobs.get(digest)
    except IntegrityError:
        return None
    return None if data is None else grade(data, digest, kind, ruleset)
