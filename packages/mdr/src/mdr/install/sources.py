"""The places that bytes come from: cache, registry, git host. All behind one small protocol."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mdr.errors import MdrError, StoreError
from mdr.install.candidate import reference_to
from mdr.install.git_host import GitHost
from mdr.reference.types import Label
from mdr.store.files import FileBlobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mdr.digest import Sha256
    from mdr.install.fetch import BlobSource
    from mdr.install.lock import Entry
    from mdr.registry.interface import Registry
    from mdr.settings import Settings
    from mdr.version.types import FileEntry


class CacheSource:
    """The blobs in the data folder, read without opening the index."""

    name = "cache"
    remote = False

    def __init__(self, data: Path) -> None:
        self._store = FileBlobStore(data)

    def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
        """Return what is cached and undamaged of the files."""
        found = ((file.sha256, self.blob(file.sha256)) for file in files)
        return {digest: data for digest, data in found if data is not None}

    def blob(self, digest: Sha256) -> bytes | None:
        """Return cached bytes; a damaged or unreadable blob counts as absent."""
        try:
            return self._store.get(digest)
        except (MdrError, OSError):
            return None

    def keep(self, blobs: Sequence[bytes]) -> None:
        """Put verified bytes into the cache; one that cannot be written costs only the next fetch."""
        with suppress(StoreError, OSError):
            self._store.put(blobs)


@dataclass(slots=True, kw_only=True)
class RegistrySource:
    """A registry, asked by hash."""

    name: str
    remote: bool
    open: Callable[[], Registry]
    _registry: Registry | None = None

    def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
        """Return what it holds of the files."""
        if self._registry is None:
            self._registry = self.open()
        found = ((file.sha256, self._registry.blob(file.sha256)) for file in files)
        return {digest: data for digest, data in found if data is not None}


@dataclass(slots=True, kw_only=True)
class LookupSource:
    """The last resort of an install that is not frozen: have the local registry index the repository."""

    open: Callable[[], Registry]
    name: str = "index"
    remote: bool = False

    def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
        """Resolve the locked label, which indexes its repository, and return what is held then.

        Raises:
            mdr.errors.MdrError: not-found, or what the fetch said.
        """
        registry = self.open()
        registry.resolve(reference_to(entry, Label(label=entry.label)))
        found = ((file.sha256, registry.blob(file.sha256)) for file in files)
        return {digest: data for digest, data in found if data is not None}


def blob_sources(
    settings: Settings, *, offline: bool = False, frozen: bool = False
) -> tuple[BlobSource, ...]:
    """Return the places to ask for locked bytes, nearest first.

    Args:
        settings: Where data and registry are.
        offline: Only this machine: the cache, and a registry that is a folder here.
        frozen: Never look a reference up.
    """
    from mdr.registry import open_registry

    sources: list[BlobSource] = [CacheSource(settings.data)]
    if settings.registry is not None:
        is_remote = not settings.registry.startswith("file:")
        if not (offline and is_remote):
            sources.append(registry_source(lambda: open_registry(settings), remote=is_remote))
    if not offline:
        sources.append(GitHost(settings))
        if not frozen and settings.index_on_demand:
            local = replace(settings, registry=None)
            sources.append(LookupSource(open=lambda: open_registry(local)))
    return tuple(sources)


def registry_source(open_it: Callable[[], Registry], *, remote: bool) -> RegistrySource:
    """Wrap a registry as a source of bytes."""
    return RegistrySource(name="registry", remote=remote, open=open_it)
