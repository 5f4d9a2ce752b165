"""Blobs, index and search as one value, wherever each of them is."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.store.blobs import BlobPlace, StagingStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mdr.settings import Settings
    from mdr.store.index import Index
    from mdr.store.search import SearchIndex
    from mdr.store.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What is kept."""

    data: Path
    """The data folder: fetched repositories and locks, and by default everything else."""
    place: BlobPlace
    """Where ``blobs`` are, for other processes."""
    blobs: StagingStore
    index: Index
    search: SearchIndex
    state: State

    def close(self) -> None:
        """Close every connection; the value may be used again, and opens new ones then."""
        self.state.close()
        self.blobs.close()
        self.index.engine.dispose()


def open_stores(settings: Settings, *, create: bool) -> Stores | None:
    """Open index and blobs where the settings say: SQLite or PostgreSQL, a folder or S3.

    Args:
        settings: Where.
        create: Whether to create what does not exist.

    Returns:
        ``None`` when there is no index and none is to be created.

    Raises:
        mdr.errors.UsageError: bad-database, bad-blobs, postgresql-missing, s3-missing.
        mdr.errors.StoreError: index-newer, index-unreadable, store-unwritable, registry-missing,
            database-unreachable, database-busy.
    """
    from mdr.errors import StoreError
    from mdr.store.engine import open_database

    place = BlobPlace(root=settings.data, address=settings.blobs)
    blobs = place.open()
    if create:
        _make(settings.data)
    engine = open_database(
        settings.data,
        create=create,
        read_only=settings.read_only,
        address=settings.database,
        pool=settings.pool,
    )
    if engine is None and settings.read_only:
        raise StoreError(
            "registry-missing",
            f"there is no registry in {settings.data}",
            hint="check the path and that its disk is mounted; `mdr index SOURCE --data DIR` makes one",
            data={"folder": str(settings.data)},
        )
    if engine is None:
        return None
    from mdr.store.index import Index
    from mdr.store.search import search_index
    from mdr.store.state import State

    return Stores(
        data=settings.data,
        place=place,
        blobs=blobs,
        index=Index(engine),
        search=search_index(engine),
        state=State(engine),
    )


def _make(folder: Path) -> None:
    from mdr.errors import StoreError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            "store-unwritable",
            f"the data folder {folder} cannot be created: {error.strerror}",
            hint="check permissions, or name another folder with --data",
        ) from error


def store_lock(data: Path, *, shared: bool) -> AbstractContextManager[None]:
    """Hold the lock of a data folder: indexers share it, a repair holds it alone."""
    from mdr.store.locking import hold

    return hold(data / "locks" / "store", shared=shared)


@contextmanager
def source_lock(stores: Stores, host: str, repository: str) -> Iterator[None]:
    """Hold the lock of one repository: one fetch and one indexing at a time, on all machines.

    Raises:
        mdr.errors.StoreError: store-unwritable, database-unreachable.
    """
    from mdr.digest import sha256
    from mdr.store.locking import hold

    name = f"{host}\n{repository.lower()}"
    with ExitStack() as held:
        held.enter_context(hold(stores.data / "locks" / f"source-{sha256(name.encode())[:32]}"))
        if stores.index.engine.dialect.name == "postgresql":
            from mdr.store.postgres import hold_advisory

            held.enter_context(hold_advisory(stores.index.engine, f"source\n{name}"))
        yield


def chunks(
    names: list[str], sizes: dict[str, int], *, files: int, total: int
) -> Iterator[list[str]]:
    """Cut work into pieces of at most ``files`` names and about ``total`` bytes."""
    piece: list[str] = []
    weight = 0
    for name in names:
        piece.append(name)
        weight += sizes[name]
        if len(piece) >= files or weight >= total:
            yield piece
            piece, weight = [], 0
    if piece:
        yield piece
