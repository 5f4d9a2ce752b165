"""Index one source: from git history to durable blobs, grades and one transaction.

The order is what makes a kill at any moment harmless: blobs are durable under their names before the
transaction that names them begins, and the source's head moves in that same transaction. A run that dies
leaves either nothing new in the index or everything; blobs without an index entry are found again by
content on the next run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mdr.artifact.discover import PathLimits
from mdr.artifact.types import Artifact, Kind, Skipped
from mdr.registry.freezing import Content, freeze_line, wanted_objects
from mdr.registry.harvest import Read, Work, describe, harvest
from mdr.registry.stores import Stores, open_stores, source_lock, store_lock
from mdr.source.locate import Location, locate
from mdr.source.opening import current_head, open_source
from mdr.store.rows import Grade, NewLine
from mdr.version.history import Bounds, discover, replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdr.registry.harvest import Progress
    from mdr.settings import Limits, Settings
    from mdr.source.types import Head, Oid, Source
    from mdr.store.rows import HostWords, SourceRow
    from mdr.version.drafts import Line


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
    stores = open_stores(settings, create=True)
    assert stores is not None
    location, words, notes = _ask_host(location, stores, settings, named=name_as is not None)
    head = current_head(location, settings)
    known = stores.index.source(location.host, location.repository)
    new = 0
    if known is None or known.head != head.commit:
        with source_lock(settings.data, location.host, location.repository):
            known = stores.index.source(location.host, location.repository)
            if known is None or known.head != head.commit:
                new = _index(location, head, stores, settings, progress)
    _save_words(stores, location, words)
    row = stores.index.source(location.host, location.repository)
    assert row is not None
    totals = stores.index.totals(row.id)
    return Indexed(
        source=text,
        host=row.host,
        repository=row.repository,
        head=row.head or head.commit,
        artifacts=totals.artifacts,
        versions=totals.versions,
        new_versions=new,
        skipped=stores.index.skipped(row.id),
        seconds=round(time.monotonic() - started, 3),
        notes=notes,
    )


def bounds_of(limits: Limits) -> Bounds:
    """Cut the settings' limits to what the replay needs."""
    return Bounds(
        path=PathLimits(max_bytes=limits.max_path_bytes, max_depth=limits.max_depth),
        folder_files=limits.max_folder_files,
        folder_revisions=limits.max_folder_revisions,
        manifest_lines=limits.max_manifest_lines,
    )


def _index(
    location: Location, head: Head, stores: Stores, settings: Settings, progress: Progress
) -> int:
    """Do the work, with the lock of the repository held; return the number of new versions."""
    with (
        store_lock(settings.data, shared=True),
        open_source(location, head, settings) as source,
    ):
        tip = source.head()
        progress("reading history", 0, 0)
        line = _replay(source, tip, location, settings)
        known = stores.index.source(location.host, location.repository)
        content = _content(source, line, stores, known, settings, progress)
        progress("writing the index", 0, 0)
        return _record(location, tip, line, content, stores, settings)


def _replay(source: Source, tip: Head, location: Location, settings: Settings) -> Line:
    bounds = bounds_of(settings.limits)
    found = discover(
        source.history(tip.commit),
        host=location.host,
        repository=location.repository,
        bounds=bounds,
    )
    renames = source.renames(found.moving)
    steps = source.history(tip.commit)
    return replay(steps, found, renames=renames, shallow=source.shallow, bounds=bounds)


def _content(
    source: Source,
    line: Line,
    stores: Stores,
    known: SourceRow | None,
    settings: Settings,
    progress: Progress,
) -> Content:
    """Find out hash, size and grade of every blob of the line; read those that are new."""
    from mdr.audit.rulesets import LATEST

    wanted = wanted_objects(line)
    old = stores.index.known_objects(known.id) if known is not None else {}
    graded = stores.index.graded(LATEST)
    kinds = {
        oid: missing
        for oid, each in wanted.kinds.items()
        if (
            missing := frozenset(
                k for k in each if oid not in old or (old[oid][0], k) not in graded
            )
        )
    }
    unread = [oid for oid in wanted.oids if oid not in old or oid in kinds]
    sizes = source.sizes(unread)
    readable = {
        oid: size
        for oid, size in sizes.items()
        if size is not None and size <= settings.limits.max_file_bytes
    }
    stores.index.engine.dispose()  # no connection may be shared with the processes started now
    work = Work(sizes=readable, kinds=kinds, ruleset=LATEST)
    reads = harvest(source, stores.data, work, workers=settings.workers, progress=progress)
    links = {oid: data for oid, data in source.read(_links(wanted.links, reads, old))}
    return Content(
        hashes={oid: old[oid] for oid in wanted.oids if oid in old}
        | {oid: (read.sha256, read.size) for oid, read in reads.items()},
        sizes=sizes,
        links=links,
        fresh={oid: (read.sha256, read.size) for oid, read in reads.items() if oid not in old},
        grades=tuple(grade for read in reads.values() for grade in read.grades),
        descriptions={oid: read.description for oid, read in reads.items() if oid in kinds},
    )


def _links(links: Sequence[Oid], reads: Mapping[Oid, Read], old: Mapping[Oid, object]) -> list[Oid]:
    return [oid for oid in links if oid in reads or oid in old]


def _record(
    location: Location,
    tip: Head,
    line: Line,
    content: Content,
    stores: Stores,
    settings: Settings,
) -> int:
    from mdr.store.engine import writing
    from mdr.store.recording import ensure_source, record

    frozen = freeze_line(line, content, settings.limits)
    artifacts = tuple(
        replace(
            each,
            artifact=_described(
                each.artifact, each.versions[-1].sha256, frozen.oids, content, stores
            ),
        )
        for each in frozen.artifacts
    )
    new = NewLine(
        head=tip.commit,
        branch=tip.branch,
        location=location.address,
        commits=line.commits,
        artifacts=artifacts,
        manifests=frozen.manifests,
        objects=content.fresh,
        grades=content.grades,
        skipped=frozen.skipped,
    )
    with writing(stores.index.engine) as connection:
        source_id = ensure_source(connection, location.host, location.repository, location.address)
        done = record(connection, source_id, new)
        latest = {each.artifact.id: each.versions[-1].sha256 for each in artifacts}
        documents = [
            (artifact, (stores.blobs.get(latest[artifact.id]) or b"").decode("utf-8", "replace"))
            for artifact in done.refreshed
        ]
        stores.search.refresh(connection, documents)
    return done.new_versions


def _described(
    artifact: Artifact,
    digest: str,
    oids: Mapping[str, Oid],
    content: Content,
    stores: Stores,
) -> Artifact:
    """Give an artifact the description of its latest version."""
    oid = oids[artifact.id]
    if oid in content.descriptions:
        return replace(artifact, description=content.descriptions[oid])
    data = stores.blobs.get(digest)  # type: ignore[arg-type]
    return replace(artifact, description=describe(data) if data is not None else None)


def _ask_host(
    location: Location, stores: Stores, settings: Settings, *, named: bool
) -> tuple[Location, HostWords | None, tuple[str, ...]]:
    """Ask GitHub about a repository of its own; other hosts say nothing."""
    if not location.is_github or location.server != location.host:
        return location, None, ()
    from mdr.registry.github_words import ask

    return ask(location, stores, settings, named=named)


def _save_words(stores: Stores, location: Location, words: HostWords | None) -> None:
    if words is None:
        return
    from mdr.store.engine import writing
    from mdr.store.recording import save_words

    with writing(stores.index.engine) as connection:
        save_words(connection, location.host, location.repository, words)
