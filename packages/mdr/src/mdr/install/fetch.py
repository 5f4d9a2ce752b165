"""Get bytes by hash, from the nearest place that has them, trusting none of them.

Order: the cache in the data folder, the registry, the git host at the locked commit. Every byte is
hashed and its size compared before anything else sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mdr.digest import Sha256, same, sha256
from mdr.errors import IntegrityError, MdrError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mdr.install.lock import Entry
    from mdr.version.types import FileEntry

PARALLEL: Final = 8
"""Requests at once to a registry or host across the network."""


class BlobSource(Protocol):
    """One place that may have bytes."""

    @property
    def name(self) -> str:
        """What people read in errors, such as ``cache``."""
        ...

    @property
    def remote(self) -> bool:
        """Whether requests cross the network and are worth running in parallel."""
        ...

    def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
        """Return those of the files' bytes that this place has; fewer is no error."""
        ...


class Fetcher:
    """Gathers the bytes of entries from several sources, checked."""

    def __init__(
        self,
        sources: Sequence[BlobSource],
        *,
        keep: Callable[[Sequence[bytes]], object] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Take the sources in the order in which they are asked.

        Args:
            sources: Nearest first; the first one is the cache.
            keep: Puts bytes that did not come from the first source into the cache; called once.
            progress: Called with (entries done, entries in all).
        """
        self._sources = tuple(sources)
        self._keep = keep
        self._progress = progress
        self._held: dict[Sha256, bytes] = {}
        self._fresh: list[bytes] = []

    def read(self, digest: Sha256) -> bytes:
        """Return bytes that were gathered before."""
        return self._held[digest]

    def get(self, digest: Sha256) -> bytes | None:
        """Return bytes when they were gathered."""
        return self._held.get(digest)

    def gather(self, entries: Sequence[Entry]) -> dict[tuple[str, str, str], MdrError]:
        """Get everything that the entries need.

        Returns:
            For each entry that cannot be had, by identity: bytes-not-found, hash-mismatch, or what its
            host said.
        """
        failures: dict[tuple[str, str, str], MdrError] = {}
        complaints: dict[tuple[str, str, str], list[str]] = {}
        wanting = list(entries)
        withdrawn: dict[tuple[str, str, str], MdrError] = {}
        for index, source in enumerate(self._sources):
            wanting = [
                entry
                for entry in wanting
                if entry.identity not in withdrawn and self._missing(entry.files)
            ]
            if not wanting:
                break
            for entry, result in self._ask(source, wanting):
                if isinstance(result, MdrError) and result.code == "tombstone":
                    withdrawn[entry.identity] = result  # no other place is asked for such bytes
                elif isinstance(result, MdrError):
                    complaints.setdefault(entry.identity, []).append(
                        f"{source.name}: {result.message}"
                    )
                else:
                    bad = self._take(entry, result, source, cached=index == 0)
                    if bad is not None:
                        failures.setdefault(entry.identity, bad)
        if self._keep is not None and self._fresh:
            self._keep(self._fresh)
            self._fresh = []
        for entry in wanting:
            missing = self._missing(entry.files)
            if missing:
                said = complaints.get(entry.identity, [])
                failures.setdefault(entry.identity, self._not_found(entry, missing, said))
            else:
                failures.pop(entry.identity, None)
        return failures | withdrawn

    def _missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        return [file for file in files if file.sha256 not in self._held]

    def _ask(
        self, source: BlobSource, entries: Sequence[Entry]
    ) -> Iterable[tuple[Entry, Mapping[Sha256, bytes] | MdrError]]:
        def one(entry: Entry) -> tuple[Entry, Mapping[Sha256, bytes] | MdrError]:
            try:
                return entry, source.get(entry, self._missing(entry.files))
            except MdrError as error:
                return entry, error

        if source.remote and len(entries) > 1:
            yield from self._ask_parallel(one, entries)
            return
        for number, entry in enumerate(entries, 1):
            yield one(entry)
            self._tell(number, len(entries))

    def _ask_parallel(
        self,
        one: Callable[[Entry], tuple[Entry, Mapping[Sha256, bytes] | MdrError]],
        entries: Sequence[Entry],
    ) -> Iterable[tuple[Entry, Mapping[Sha256, bytes] | MdrError]]:
        from concurrent.futures import ThreadPoolExecutor, as_completed

        with ThreadPoolExecutor(PARALLEL) as pool:
            running = [pool.submit(one, entry) for entry in entries]
            for number, future in enumerate(as_completed(running), 1):
                yield future.result()
                self._tell(number, len(entries))

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _take(
        self, entry: Entry, got: Mapping[Sha256, bytes], source: BlobSource, *, cached: bool
    ) -> IntegrityError | None:
        bad: IntegrityError | None = None
        for file in entry.files:
            data = got.get(file.sha256)
            if data is None or file.sha256 in self._held:
                continue
            actual = sha256(data)
            if not same(actual, file.sha256) or len(data) != file.size:
                bad = _mismatch(entry, file, actual, len(data), source.name)
                continue
            self._held[file.sha256] = data
            if not cached:
                self._fresh.append(data)
        return bad

    def _not_found(
        self, entry: Entry, missing: Sequence[FileEntry], said: Sequence[str]
    ) -> SourceError:
        asked = ", ".join(source.name for source in self._sources) or "nowhere"
        reasons = f" ({'; '.join(said)})" if said else ""
        return SourceError(
            "bytes-not-found",
            f"{entry.ref}: {missing[0].path} is in none of: {asked}{reasons}",
            hint="index the repository with `mdr index`, or name a registry that holds it",
            data={"ref": entry.ref, "sha256": [file.sha256 for file in missing]},
        )


def _mismatch(
    entry: Entry, file: FileEntry, actual: Sha256, size: int, where: str
) -> IntegrityError:
    return IntegrityError(
        "hash-mismatch",
        f"{entry.ref}: {file.path} from the {where} is not the locked file",
        hint="nothing was written; the lock is right and that place is wrong",
        data={
            "ref": entry.ref,
            "path": file.path,
            "expected": {"sha256": file.sha256, "size": file.size},
            "actual": {"sha256": actual, "size": size},
            "from": where,
        },
    )
