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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mdr.digest import Sha256
    from mdr.registry.harvest import Progress
    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.store.blobs import BlobPlace, BlobStore
    from mdr.store.rows import Grade, SourceRow
    from mdr.store.search import Document
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
        source_lock(stores, source.host, source.repository),
        store_lock(settings.data, shared=True),
    ):
        files = stores.index.ungraded(source.id, ruleset)
        grades = _grades(stores, files, ruleset, settings.workers or os.cpu_count() or 1, progress)
        documents = _unread(stores, source)
        if grades or documents:
            with writing(stores.index.engine) as connection:
                stores.search.refresh(connection, documents)
                save_grades(connection, grades)
    return len(files) - len(grades)


def _unread(stores: Stores, source: SourceRow) -> list[Document]:
    """Read again what an older program recorded without the hosts and tools that it names."""
    from mdr.registry.telling import document

    found = stores.index.unread(source.id)
    buried = stores.index.tombstones([digest for _, digest in found])
    return [
        document(artifact, digest, None if digest in buried else _held(stores.blobs, digest))
        for artifact, digest in found
    ]


def _held(blobs: BlobStore, digest: Sha256) -> bytes | None:
    try:
        return blobs.get(digest)
    except IntegrityError:
        return None


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
    jobs = [(stores.place, piece, ruleset) for piece in pieces]
    grades: list[Grade] = []
    with executor(len(files), workers) as pool:
        for each in each_result(pool, _grade_piece, jobs):
            grades += each
            progress(f"auditing by {ruleset}", len(grades), len(files))
    return grades


def _grade_piece(place: BlobPlace, files: Sequence[File], ruleset: str) -> list[Grade]:
    blobs = place.open()
    try:
        found = (_grade(blobs, digest, kind, ruleset) for digest, kind in files)
        return [each for each in found if each is not None]
    finally:
        blobs.close()


def _grade(blobs: BlobStore, digest: Sha256, kind: Kind, ruleset: str) -> Grade | None:
    data = _held(blobs, digest)
    return None if data is None else grade(data, digest, kind, ruleset)
