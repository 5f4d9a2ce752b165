"""The data folder as one value: blobs, index and search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.store.files import FileBlobStore

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
    blobs: FileBlobStore
    index: Index
    search: SearchIndex
    state: State

    def close(self) -> None:
        """Close every connection; the value may be used again, and opens new ones then."""
        self.state.close()
        self.index.engine.dispose()


def open_stores(settings: Settings, *, create: bool) -> Stores | None:
    """Open the data folder.

    Args:
        settings: Where.
        create: Whether to create it when it does not exist.

    Returns:
        ``None`` when there is no index and none is to be created.

    Raises:
        mdr.errors.StoreError: index-newer, index-unreadable, store-unwritable, registry-missing.
    """
    from mdr.errors import StoreError
    from mdr.store.engine import open_database

    if create:
        try:
            settings.data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                "store-unwritable",
                f"the data folder {settings.data} cannot be created: {error.strerror}",
                hint="check permissions, or name another folder with --data",
            ) from error
    engine = open_database(settings.data, create=create, read_only=settings.read_only)
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
    from mdr.store.search import SqliteSearch
    from mdr.store.state import State

    return Stores(
        data=settings.data,
        blobs=FileBlobStore(settings.data),
        index=Index(engine),
        search=SqliteSearch(engine),
        state=State(engine),
    )


def store_lock(data: Path, *, shared: bool) -> AbstractContextManager[None]:
    """Hold the store lock: indexers share it, a repair holds it alone."""
    from mdr.store.locking import hold

    return hold(data / "locks" / "store", shared=shared)


def source_lock(data: Path, host: str, repository: str) -> AbstractContextManager[None]:
    """Hold the lock of one repository: one fetch and one indexing at a time."""
    from mdr.digest import sha256
    from mdr.store.locking import hold

    key = sha256(f"{host}\n{repository.lower()}".encode())[:32]
    return hold(data / "locks" / f"source-{key}")


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
