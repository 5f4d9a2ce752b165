"""Index one source, when it changed since the last time.

What is unchanged costs one reference comparison and no heavy import: the pipeline is loaded only when
there is something to read.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.audit import newest
from mdr.source.locate import Location, locate
from mdr.source.opening import current_head
from mdr.store.quick import Known, known_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mdr.artifact.types import Skipped
    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.source.types import Head, Oid
    from mdr.store.rows import HostWords

    Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What one indexing did (contract.md, document ``index``)."""

    source: str
    """As the person wrote it."""
    host: str
    repository: str
    head: Oid
    artifacts: int
    versions: int
    new_versions: int
    skipped: tuple[Skipped, ...]
    seconds: float
    notes: tuple[str, ...] = ()


def quiet(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""


def index_source(
    text: str, settings: Settings, *, name_as: str | None = None, progress: Progress = quiet
) -> Indexed:
    """Index one source.

    Args:
        text: ``github:owner/repo``, a git URL, a repository or a bundle.
        settings: Data folder, limits, token.
        name_as: ``[host/]owner/repo`` to keep it under.
        progress: Called with (stage, done, total).

    Raises:
        mdr.errors.UsageError: bad-source, credentials-in-url, source-not-found.
        mdr.errors.Refusal: private-address.
        mdr.errors.SourceError: git-failed, git-timeout, source-empty, source-too-large, ...
        mdr.errors.StoreError: store-unwritable, store-readback, index-newer, index-unreadable.
    """
    started = time.monotonic()
    location = locate(text, name_as=name_as)
    known = _quick(location, settings)
    location, words, notes = _ask_host(location, known, settings, named=name_as is not None)
    if known is None:  # the host may have told another name
        known = _quick(location, settings)
    head = current_head(location, settings)
    new = 0
    if known is None or known.source.head != head.commit:
        new = _index_changed(location, head, settings, progress)
        known = None
    if words is not None:
        _save_words(settings, location, words)
        known = None
    known = known or _known(settings, location)
    if not known.graded:
        notes += _regrade(settings, known, progress)
    return Indexed(
        source=text,
        host=known.source.host,
        repository=known.source.repository,
        head=known.source.head or head.commit,
        artifacts=known.totals.artifacts,
        versions=known.totals.versions,
        new_versions=new,
        skipped=known.skipped,
        seconds=round(time.monotonic() - started, 3),
        notes=notes,
    )


def _known(settings: Settings, location: Location) -> Known:
    with _opened(settings) as stores:
        row = stores.index.source(location.host, location.repository)
        assert row is not None
        return Known(
            source=row,
            totals=stores.index.totals(row.id),
            skipped=stores.index.skipped(row.id),
            graded=not stores.index.ungraded(row.id, newest.LATEST)
            and not stores.index.unread(row.id),
        )


def _quick(location: Location, settings: Settings) -> Known | None:
    return known_source(
        settings.data, location.host, location.repository, newest.LATEST, settings.database
    )


def _regrade(settings: Settings, known: Known, progress: Progress) -> tuple[str, ...]:
    """Grade by a ruleset that is newer than the last indexing."""
    from mdr.registry.regrading import regrade

    with _opened(settings) as stores:
        lost = regrade(stores, known.source, newest.LATEST, settings, progress)
    if not lost:
        return ()
    files = "1 file" if lost == 1 else f"{lost:,} files"
    return (f"{files} without a grade by {newest.LATEST}: bytes lost; run mdr fsck --repair",)


@contextmanager
def _opened(settings: Settings) -> Iterator[Stores]:
    """Open the data folder and close its connections at the end, not when they are collected."""
    from mdr.registry.stores import open_stores

    stores = open_stores(settings, create=True)
    assert stores is not None
    try:
        yield stores
    finally:
        stores.close()


def _index_changed(location: Location, head: Head, settings: Settings, progress: Progress) -> int:
    """Index under the lock of the repository, unless another process just did."""
    from mdr.registry.stores import source_lock

    with (
        _opened(settings) as stores,
        source_lock(stores, location.host, location.repository),
    ):
        known = stores.index.source(location.host, location.repository)
        if known is not None and known.head == head.commit:
            return 0
        from mdr.registry.pipeline import Job, run

        job = Job(
            location=location,
            head=head,
            stores=stores,
            settings=settings,
            progress=progress,
            base=known.head if known is not None else None,
        )
        return run(job)


def _ask_host(
    location: Location, known: Known | None, settings: Settings, *, named: bool
) -> tuple[Location, HostWords | None, tuple[str, ...]]:
    """Ask GitHub about a repository of its own; other hosts say nothing."""
    if not location.is_github or location.server != location.host:
        return location, None, ()
    if settings.github_silent_until is not None and settings.github_silent_until > time.time():
        return location, None, ()
    from mdr.registry.github_words import ask

    return ask(location, known.source if known is not None else None, settings, named=named)


def _save_words(settings: Settings, location: Location, words: HostWords) -> None:
    from mdr.store.engine import writing
    from mdr.store.recording import save_words

    with _opened(settings) as stores, writing(stores.index.engine) as connection:
        save_words(connection, location.host, location.repository, words)
