"""From a source that changed to durable blobs, grades and one transaction.

The order is what makes a kill at any moment harmless: blobs are durable under their names before the
transaction that names them begins, and the source's head moves in that same transaction. A run that dies
leaves either nothing new in the index or everything; blobs without an index entry are found again by
content on the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mdr.artifact.discover import PathLimits
from mdr.registry.freezing import Content, freeze_line, wanted_objects
from mdr.registry.harvest import Work, describe, harvest
from mdr.registry.stores import store_lock
from mdr.source.opening import open_source
from mdr.store.rows import NewLine
from mdr.version.history import Bounds, discover, replay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256
    from mdr.registry.freezing import FrozenLine
    from mdr.registry.harvest import Progress
    from mdr.registry.stores import Stores
    from mdr.settings import Limits, Settings
    from mdr.source.locate import Location
    from mdr.source.types import Head, Oid, Source
    from mdr.version.drafts import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One repository to index, with everything that the steps share."""

    location: Location
    head: Head
    stores: Stores
    settings: Settings
    progress: Progress


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
    graded = index.graded(newest.LATEST)
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
    root, workers = job.stores.data, job.settings.workers
    reads = harvest(source, root, work, workers=workers, progress=job.progress)
    links = [oid for oid in wanted.links if oid in reads or oid in old]
    return Content(
        hashes={oid: old[oid] for oid in wanted.oids if oid in old}
        | {oid: (read.sha256, read.size) for oid, read in reads.items()},
        sizes=sizes,
        links=dict(source.read(links)),
        fresh={oid: (read.sha256, read.size) for oid, read in reads.items() if oid not in old},
        grades=tuple(grade for read in reads.values() for grade in read.grades),
        descriptions={oid: read.description for oid, read in reads.items() if oid in wanted.latest},
    )


def write_line(tip: Head, line: Line, content: Content, job: Job) -> int:
    """Record everything in one transaction."""
    from mdr.store.engine import writing
    from mdr.store.recording import ensure_source, record

    stores, location = job.stores, job.location
    frozen = freeze_line(line, content, job.settings.limits)
    artifacts = tuple(
        replace(
            each,
            artifact=_described(each.artifact, each.versions[-1].sha256, frozen, content, stores),
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
        documents = [(each, _text(stores, done.latest.get(each.id))) for each in done.refreshed]
        stores.search.refresh(connection, documents)
    return done.new_versions


def _described(
    artifact: Artifact, digest: Sha256, frozen: FrozenLine, content: Content, stores: Stores
) -> Artifact:
    """Give an artifact the description of its latest version."""
    oid: Oid = frozen.oids[artifact.id]
    known: Mapping[Oid, str | None] = content.descriptions
    if oid in known:
        return replace(artifact, description=known[oid])
    data = stores.blobs.get(digest)
    return replace(artifact, description=describe(data) if data is not None else None)


def _text(stores: Stores, digest: Sha256 | None) -> str:
    return "" if digest is None else (stores.blobs.get(digest) or b"").decode("utf-8", "replace")
