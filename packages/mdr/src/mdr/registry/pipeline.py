"""From a source that changed to durable blobs, grades and one transaction.

The order is what makes a kill at any moment harmless: blobs are durable under their names before the
transaction that names them begins, and the source's head moves in that same transaction. A run that dies
leaves either nothing new in the index or everything; blobs without an index entry are found again by
content on the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mdr.artifact.discover import PathLimits
from mdr.registry.freezing import Content, freeze_line, wanted_objects
from mdr.registry.harvest import Work, harvest
from mdr.registry.stores import store_lock
from mdr.registry.telling import describe, document
from mdr.source.opening import open_source
from mdr.store.rows import NewLine
from mdr.version.history import Bounds, discover, replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256
    from mdr.registry.freezing import FrozenLine
    from mdr.registry.harvest import Progress
    from mdr.registry.stores import Stores
    from mdr.registry.telling import Told
    from mdr.settings import Limits, Settings
    from mdr.source.locate import Location
    from mdr.source.types import Head, Oid, Source
    from mdr.store.rows import NewArtifact, Offered
    from mdr.store.search import Document
    from mdr.version.drafts import Line

TOGETHER: Final = 256
"""Documents that are read and written at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One repository to index, with everything that the steps share."""

    location: Location
    head: Head
    stores: Stores
    settings: Settings
    progress: Progress
    base: Oid | None = None
    """The head that was held when the job began; recording refuses to go on from another."""


def run(job: Job) -> int:
    """Index a repository whose lock is held.

    Returns:
        How many versions are new.
    """
    with (
        store_lock(job.settings.data, shared=True),
        open_source(job.location, job.head, job.settings) as source,
    ):
        job.progress("reading history", 0, 0)
        tip = source.head()
        line = replay_line(source, job)
        content = read_content(source, line, job)
        job.progress("writing the index", 0, 0)
        return write_line(tip, line, content, job)


def bounds_of(limits: Limits) -> Bounds:
    """Cut the settings' limits to what the replay needs."""
    return Bounds(
        path=PathLimits(max_bytes=limits.max_path_bytes, max_depth=limits.max_depth),
        folder_files=limits.max_folder_files,
        folder_revisions=limits.max_folder_revisions,
        manifest_lines=limits.max_manifest_lines,
    )


def replay_line(source: Source, job: Job) -> Line:
    """Turn the first-parent line into drafts of versions."""
    bounds = bounds_of(job.settings.limits)
    tip = source.head().commit
    found = discover(
        source.history(tip),
        host=job.location.host,
        repository=job.location.repository,
        bounds=bounds,
    )
    renames = source.renames(found.moving)
    steps = source.history(tip)
    return replay(steps, found, renames=renames, shallow=source.shallow, bounds=bounds)


def read_content(source: Source, line: Line, job: Job) -> Content:
    """Find out hash, size and grade of every blob of the line; read those that are new."""
    from mdr.audit import newest

    index = job.stores.index
    wanted = wanted_objects(line)
    known = index.source(job.location.host, job.location.repository)
    old = index.known_objects(known.id) if known is not None else {}
    held = (old[oid][0] for oid in wanted.kinds if oid in old)
    graded = index.graded(newest.LATEST, held)
    kinds = {
        oid: missing
        for oid, each in wanted.kinds.items()
        if (
            missing := frozenset(
                kind for kind in each if oid not in old or (old[oid][0], kind) not in graded
            )
        )
    }
    unread = [oid for oid in wanted.oids if oid not in old or oid in kinds]
    sizes = source.sizes(unread)
    limit = job.settings.limits.max_file_bytes
    readable = {oid: size for oid, size in sizes.items() if size is not None and size <= limit}
    index.engine.dispose()  # no connection may be shared with the processes started now
    work = Work(sizes=readable, kinds=kinds, described=wanted.latest, ruleset=newest.LATEST)
    place, workers = job.stores.place, job.settings.workers
    reads = harvest(source, place, work, workers=workers, progress=job.progress)
    links = [oid for oid in wanted.links if oid in reads or oid in old]
    return Content(
        hashes={oid: old[oid] for oid in wanted.oids if oid in old}
        | {oid: (read.sha256, read.size) for oid, read in reads.items()},
        sizes=sizes,
        links=dict(source.read(links)),
        fresh={oid: (read.sha256, read.size) for oid, read in reads.items() if oid not in old},
        grades=tuple(grade for read in reads.values() for grade in read.grades),
        told={oid: read.told for oid, read in reads.items() if read.told is not None},
    )


def write_line(tip: Head, line: Line, content: Content, job: Job) -> int:
    """Record everything in one transaction."""
    from mdr.store.engine import writing
    from mdr.store.recording import ensure_source, record
    from mdr.store.state import changed

    stores, location = job.stores, job.location
    frozen = freeze_line(line, content, job.settings.limits)
    artifacts = tuple(
        replace(each, artifact=_described(each, frozen, content, stores))
        for each in frozen.artifacts
    )
    new = NewLine(
        base=job.base,
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
    told = {
        each.versions[-1].sha256: content.told[oid]
        for each in artifacts
        if (oid := frozen.oids[each.artifact.id]) in content.told
    }
    with writing(stores.index.engine) as connection:
        source_id = ensure_source(connection, location.host, location.repository, location.address)
        done = record(connection, source_id, new)
        for start in range(0, len(done.refreshed), TOGETHER):
            share = done.refreshed[start : start + TOGETHER]
            stores.search.refresh(connection, _documents(stores, share, done.latest, told))
        if done.changed:
            changed(connection)
    return done.new_versions


def _documents(
    stores: Stores,
    artifacts: Sequence[Artifact],
    latest: Mapping[str, Offered],
    told: Mapping[Sha256, Told],
) -> list[Document]:
    """Write what search keeps of some artifacts; bytes that are withdrawn are not even read."""
    offered = [(each, latest[each.id]) for each in artifacts if each.id in latest]
    texts = stores.blobs.get_many([each.sha256 for _, each in offered if not each.withdrawn])
    return [
        document(artifact, each.sha256, texts.get(each.sha256), told.get(each.sha256))
        for artifact, each in offered
    ]


def _described(new: NewArtifact, frozen: FrozenLine, content: Content, stores: Stores) -> Artifact:
    """Give an artifact the description of its latest version."""
    oid: Oid = frozen.oids[new.artifact.id]
    known: Mapping[Oid, Told] = content.told
    if oid in known:
        return replace(new.artifact, description=known[oid].description)
    data = stores.blobs.get(new.versions[-1].sha256)
    return replace(new.artifact, description=describe(data) if data is not None else None)
