"""Read the index: sources, artifacts, versions, manifests, grades."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select
from sqlalchemy.exc import SQLAlchemyError

from mdr.artifact.types import Artifact, Kind, Skipped
from mdr.digest import Sha256, sha256
from mdr.errors import IntegrityError
from mdr.store.engine import one_state, unreadable
from mdr.store.rows import SourceRow, Totals
from mdr.store.schema import (
    artifacts,
    folder_revisions,
    grades,
    manifests,
    objects,
    skips,
    sources,
    versions,
)
from mdr.store.withdrawn import tombstones, yanks
from mdr.version.manifest import parse_manifest
from mdr.version.types import FileEntry, FolderRevision, Tombstone, Version, Yanked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, Select

CHUNK = 500
"""Values in one ``IN (...)``; every database takes that many."""


class Index:
    """The read side. Every call sees one committed state."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection that sees one committed state, and whose failures are ours.

        Raises:
            mdr.errors.StoreError: index-unreadable.
        """
        try:
            with self.engine.connect() as connection:
                yield one_state(connection)
        except SQLAlchemyError as error:
            raise unreadable(error) from error

    def _rows(self, statement: Select[Any]) -> list[Mapping[str, Any]]:
        with self.reading() as connection:
            return _all(connection, statement)

    def source(self, host: str, repository: str) -> SourceRow | None:
        """Return a repository by host and name; case of the name is ignored."""
        where = (sources.c.host == host) & (sources.c.repository_key == repository.lower())
        rows = self._rows(select(sources).where(where))
        return _source(rows[0]) if rows else None

    def source_of(self, artifact_id: str) -> SourceRow | None:
        """Return the repository of an artifact."""
        join = select(sources).join(artifacts, artifacts.c.source_id == sources.c.id)
        rows = self._rows(join.where(artifacts.c.id == artifact_id))
        return _source(rows[0]) if rows else None

    def sources(self) -> list[SourceRow]:
        """Return every repository, ordered by host and name."""
        order = select(sources).order_by(sources.c.host, sources.c.repository_key)
        return [_source(row) for row in self._rows(order)]

    def totals(self, source_id: int) -> Totals:
        """Count the artifacts and versions of a repository, those of deleted files included."""
        statement = (
            select(func.count(func.distinct(artifacts.c.id)), func.count(versions.c.id))
            .select_from(artifacts.join(versions, versions.c.artifact_id == artifacts.c.id))
            .where(artifacts.c.source_id == source_id)
        )
        with self.reading() as connection:
            row = connection.execute(statement).one()
        return Totals(artifacts=row[0], versions=row[1])

    def skipped(self, source_id: int) -> tuple[Skipped, ...]:
        """Return what the last indexing left out."""
        rows = self._rows(
            select(skips).where(skips.c.source_id == source_id).order_by(skips.c.path)
        )
        return tuple(Skipped(path=row["path"], reason=row["reason"]) for row in rows)

    def known_objects(self, source_id: int) -> dict[str, tuple[Sha256, int]]:
        """Return hash and size of every git object of a repository that was read before."""
        rows = self._rows(select(objects).where(objects.c.source_id == source_id))
        return {row["oid"]: (Sha256(row["sha256"]), row["size"]) for row in rows}

    def artifact(self, artifact_id: str) -> Artifact | None:
        """Return an artifact by id."""
        found = self._artifacts(artifacts.c.id == artifact_id)
        return found[0] if found else None

    def artifacts_named(self, source_id: int, name: str) -> list[Artifact]:
        """Return the artifacts of a repository with this name, whatever its case, by path."""
        return self._artifacts(
            (artifacts.c.source_id == source_id) & (artifacts.c.name_key == name.lower())
        )

    def artifacts_at(self, source_id: int, path: str) -> list[Artifact]:
        """Return the artifacts at this path, whatever its case, by path."""
        key = func.lower(artifacts.c.path)
        return self._artifacts((artifacts.c.source_id == source_id) & (key == path.lower()))

    def artifacts_in(self, source_id: int) -> list[Artifact]:
        """Return every artifact of a repository, by path."""
        return self._artifacts(artifacts.c.source_id == source_id)

    def _artifacts(self, where: Any) -> list[Artifact]:
        columns = select(artifacts, sources.c.host, sources.c.repository)
        join = columns.join(sources, sources.c.id == artifacts.c.source_id)
        return [
            artifact_of(row) for row in self._rows(join.where(where).order_by(artifacts.c.path))
        ]

    def versions(self, artifact: Artifact, ruleset: str) -> tuple[Version, ...]:
        """Return the versions of an artifact, newest first."""
        return self.versions_of([artifact], ruleset).get(artifact.id, ())

    def versions_of(
        self, wanted: Sequence[Artifact], ruleset: str
    ) -> dict[str, tuple[Version, ...]]:
        """Return the versions of several artifacts, newest first, by artifact id."""
        found: dict[str, tuple[Version, ...]] = {}
        for start in range(0, len(wanted), CHUNK):
            ids = [each.id for each in wanted[start : start + CHUNK]]
            with self.reading() as connection:
                rows = _all(connection, _version_rows(ids, ruleset))
                revisions = _revisions(connection, ids)
                yanked = yanks(connection, ids)
            grouped: dict[str, list[Mapping[str, Any]]] = {key: [] for key in ids}
            for row in rows:
                grouped[row["artifact_id"]].append(row)
            for key, mine in grouped.items():
                found[key] = tuple(_version(row, mine, ruleset, revisions, yanked) for row in mine)
        return found

    def tombstones(self, digests: Iterable[Sha256]) -> dict[Sha256, Tombstone]:
        """Return which of some hashes have a tombstone, and why."""
        with self.reading() as connection:
            return tombstones(connection, digests)

    def artifacts_with(self, digests: Sequence[Sha256]) -> list[Artifact]:
        """Return the artifacts that have a version whose file hashes to one of ``digests``."""
        found: dict[str, Artifact] = {}
        for start in range(0, len(digests), CHUNK):
            chunk = list(digests[start : start + CHUNK])
            ids = select(versions.c.artifact_id).where(versions.c.sha256.in_(chunk))
            found |= {each.id: each for each in self._artifacts(artifacts.c.id.in_(ids))}
        return list(found.values())

    def omitted(self, artifact_id: str, label: str) -> tuple[Skipped, ...]:
        """Return what the folder of a version has in git and does not have here."""
        where = (versions.c.artifact_id == artifact_id) & (versions.c.label == label)
        rows = self._rows(select(versions.c.omitted).where(where))
        pairs = json.loads(rows[0]["omitted"]) if rows else []
        return tuple(Skipped(path=path, reason=reason) for path, reason in pairs)

    def graded(self, ruleset: str, digests: Iterable[Sha256]) -> set[tuple[Sha256, Kind]]:
        """Return which of these files have a grade of ``ruleset``, and as what kind."""
        wanted = sorted(set(digests))
        found: set[tuple[Sha256, Kind]] = set()
        for start in range(0, len(wanted), CHUNK):
            where = (grades.c.ruleset == ruleset) & grades.c.sha256.in_(
                wanted[start : start + CHUNK]
            )
            rows = self._rows(select(grades.c.sha256, grades.c.kind).where(where))
            found |= {(Sha256(row["sha256"]), Kind(row["kind"])) for row in rows}
        return found

    def ungraded(self, source_id: int, ruleset: str) -> list[tuple[Sha256, Kind]]:
        """Return the files of a repository's versions, and as what kind, that ``ruleset`` has not graded."""
        statement = (
            select(versions.c.sha256, artifacts.c.kind)
            .join(artifacts, artifacts.c.id == versions.c.artifact_id)
            .outerjoin(grades, _graded_by(ruleset))
            .where(artifacts.c.source_id == source_id, grades.c.sha256.is_(None))
            .distinct()
            .order_by(versions.c.sha256, artifacts.c.kind)
        )
        return [(Sha256(row["sha256"]), Kind(row["kind"])) for row in self._rows(statement)]

    def unread(self, source_id: int) -> list[tuple[Artifact, Sha256]]:
        """Return the artifacts whose offered version an older program recorded, without what it names."""
        known = func.coalesce(artifacts.c.mentions_of, "")
        where = (artifacts.c.source_id == source_id) & artifacts.c.present
        columns = select(artifacts, sources.c.host, sources.c.repository)
        join = columns.join(sources, sources.c.id == artifacts.c.source_id)
        rows = self._rows(join.where(where, known != artifacts.c.latest_sha256))
        return [(artifact_of(row), Sha256(row["latest_sha256"])) for row in rows]

    def manifest(self, digest: Sha256) -> tuple[FileEntry, ...] | None:
        """Return the files of a manifest, verified by its hash; ``None`` when it is not held.

        Raises:
            mdr.errors.IntegrityError: manifest-corrupt.
        """
        rows = self._rows(select(manifests.c.body).where(manifests.c.sha256 == digest))
        if not rows:
            return None
        body: str = rows[0]["body"]
        if sha256(body.encode("utf-8")) != digest:
            raise IntegrityError(
                "manifest-corrupt",
                f"the stored manifest {digest} has another hash",
                hint="run mdr fsck --repair",
                data={"sha256": digest},
            )
        return parse_manifest(body)


def artifact_of(row: Mapping[str, Any]) -> Artifact:
    """Turn a row of ``artifacts`` joined with ``sources`` into the value."""
    return Artifact(
        host=row["host"],
        repository=row["repository"],
        path=row["path"],
        name=row["name"],
        kind=Kind(row["kind"]),
        description=row["description"],
        latest=row["latest"],
        previously=tuple(json.loads(row["previously"])),
        present=bool(row["present"]),
    )


def _all(connection: Connection, statement: Select[Any]) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(statement).mappings()]


def _revisions(connection: Connection, ids: Sequence[str]) -> dict[int, list[FolderRevision]]:
    statement = (
        select(folder_revisions)
        .join(versions, versions.c.id == folder_revisions.c.version_id)
        .where(versions.c.artifact_id.in_(ids))
        .order_by(folder_revisions.c.committed.desc(), folder_revisions.c.id.desc())
    )
    found: dict[int, list[FolderRevision]] = {}
    for row in _all(connection, statement):
        revision = FolderRevision(
            commit=row["commit_oid"],
            committed=row["committed"],
            manifest_sha256=Sha256(row["manifest_sha256"]),
        )
        found.setdefault(row["version_id"], []).append(revision)
    return found


def _source(row: Mapping[str, Any]) -> SourceRow:
    return SourceRow(**{key: row[key] for key in SourceRow.__slots__})


def _graded_by(ruleset: str) -> ColumnElement[bool]:
    """Join a version to its grade."""
    return and_(
        grades.c.sha256 == versions.c.sha256,
        grades.c.kind == artifacts.c.kind,
        grades.c.ruleset == ruleset,
    )


def _version_rows(ids: Sequence[str], ruleset: str) -> Select[Any]:
    return (
        select(versions, grades.c.grade, artifacts.c.latest.label("latest_label"))
        .join(artifacts, artifacts.c.id == versions.c.artifact_id)
        .outerjoin(grades, _graded_by(ruleset))
        .where(versions.c.artifact_id.in_(ids))
        .order_by(versions.c.artifact_id, versions.c.position.desc())
    )


def _version(
    row: Mapping[str, Any],
    siblings: Sequence[Mapping[str, Any]],
    ruleset: str,
    revisions: Mapping[int, list[FolderRevision]],
    yanked: Mapping[tuple[str, str], Yanked],
) -> Version:
    same = [each["label"] for each in siblings if each["sha256"] == row["sha256"]]
    return Version(
        label=row["label"],
        latest=row["label"] == row["latest_label"],
        committed=row["committed"],
        commit=row["commit_oid"],
        size=row["size"],
        sha256=Sha256(row["sha256"]),
        manifest_sha256=Sha256(row["manifest_sha256"]),
        grade=row["grade"] or "",
        ruleset=ruleset,
        same_bytes=tuple(label for label in same if label != row["label"]),
        folder_revisions=tuple(revisions.get(row["id"], ())),
        yanked=yanked.get((row["artifact_id"], row["label"])),
    )
