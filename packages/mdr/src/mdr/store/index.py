"""Read the index: sources, artifacts, versions, manifests, grades."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select

from mdr.artifact.types import Artifact, Kind, Skipped
from mdr.digest import Sha256, sha256
from mdr.errors import IntegrityError
from mdr.store import together
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
        with together.reading(self.engine) as connection:
            yield connection

    def _rows(self, statement: Select[Any]) -> list[Mapping[str, Any]]:
        with self.reading() as connection:
            return _all(connection, statement)

    def _once(self, key: tuple[object, ...], statement: Select[Any]) -> list[Mapping[str, Any]]:
        return together.once(self.engine, key, lambda: self._rows(statement))

    def source(self, host: str, repository: str) -> SourceRow | None:
        """Return a repository by host and name; case of the name is ignored."""
        key = repository.lower()
        where = (sources.c.host == host) & (sources.c.repository_key == key)
        rows = self._once(("source", host, key), select(sources).where(where))
        return _source(rows[0]) if rows else None

    def sources_of(self, artifact_ids: Sequence[str]) -> dict[str, SourceRow]:
        """Return the repositories of several artifacts, by artifact id."""
        columns = select(sources, artifacts.c.id.label("artifact_id"))
        join = columns.join(artifacts, artifacts.c.source_id == sources.c.id)
        found: dict[str, SourceRow] = {}
        for start in range(0, len(artifact_ids), CHUNK):
            ids = artifact_ids[start : start + CHUNK]
            rows = self._rows(join.where(artifacts.c.id.in_(ids)))
            found |= {row["artifact_id"]: _source(row) for row in rows}
        return found

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
        where = artifacts.c.id == artifact_id
        found = together.once(
            self.engine, ("artifact", artifact_id), lambda: self._artifacts(where)
        )
        return found[0] if found else None

    def artifacts_named(self, source_id: int, name: str) -> list[Artifact]:
        """Return the artifacts of a repository with this name, whatever its case, by path."""
        where = (artifacts.c.source_id == source_id) & (artifacts.c.name_key == name.lower())
        key = ("named", source_id, name.lower())
        return together.once(self.engine, key, lambda: self._artifacts(where))

    def artifacts_at(self, source_id: int, path: str) -> list[Artifact]:
        """Return the artifact at this path, or else those that are when case is ignored, by path."""
        here, column = artifacts.c.source_id == source_id, artifacts.c.path

        def ask() -> list[
            Artifact
        ]:  # an index knows the path as it is; case costs the whole source
            return self._artifacts(here & (column == path)) or self._artifacts(
                here & (func.lower(column) == path.lower())
            )

        return together.once(self.engine, ("at", source_id, path), ask)

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
        ids = [each.id for each in wanted]
        ask = partial(self._versions_of, ruleset)
        return together.each_once(self.engine, f"versions by {ruleset}", ids, ask)

    def _versions_of(self, ruleset: str, wanted: list[str]) -> dict[str, tuple[Version, ...]]:
        found: dict[str, tuple[Version, ...]] = {}
        for start in range(0, len(wanted), CHUNK):
            ids = wanted[start : start + CHUNK]
            with self.reading() as connection:
                rows = _all(connection, _version_rows(ids, ruleset))
                revisions = _revisions(connection, ids)
                yanked = yanks(connection, ids)
            grouped: dict[str, list[Mapping[str, Any]]] = {key: [] for key in ids}
            for row in rows:
                grouped[row["artifact_id"]].append(row)
            told = ((("omitted", row["artifact_id"], row["label"]), [row]) for row in rows)
            together.told(self.engine, told)
            for key, mine in grouped.items():
                found[key] = tuple(_version(row, mine, ruleset, revisions, yanked) for row in mine)
        return found

    def tombstones(self, digests: Iterable[Sha256]) -> dict[Sha256, Tombstone]:
        """Return which of some hashes have a tombstone, and why."""

        def ask(wanted: list[str]) -> dict[str, Tombstone]:
            with self.reading() as connection:
                return {str(key): each for key, each in tombstones(connection, wanted).items()}

        found = together.each_once(self.engine, "tombstone", list(digests), ask)
        return {Sha256(key): each for key, each in found.items()}

    def namesakes(self, wanted: Sequence[Artifact]) -> dict[str, int]:
        """Count, by id, the artifacts that exist in the same repository under the same name."""
        other = artifacts.alias("other")
        same = (other.c.source_id == artifacts.c.source_id) & (
            other.c.name_key == artifacts.c.name_key
        )
        found: dict[str, int] = {}
        for start in range(0, len(wanted), CHUNK):
            ids = [each.id for each in wanted[start : start + CHUNK]]
            counts = (
                select(artifacts.c.id, func.count(other.c.number).label("number"))
                .join(other, same)
                .where(artifacts.c.id.in_(ids), other.c.present)
                .group_by(artifacts.c.id)
            )
            found |= {row["id"]: row["number"] for row in self._rows(counts)}
        return found

    def names_beside(self, source_id: int, name: str, most: int) -> list[str]:
        """Return names of artifacts that exist, those next to ``name`` in the order of names."""
        key, here = artifacts.c.name_key, (artifacts.c.source_id == source_id) & artifacts.c.present
        columns = select(artifacts.c.name).where(here).limit(most)
        after = columns.where(key >= name.lower()).order_by(key)
        before = columns.where(key < name.lower()).order_by(key.desc())
        return [row["name"] for each in (before, after) for row in self._rows(each)]

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
        rows = self._once(("omitted", artifact_id, label), select(versions.c.omitted).where(where))
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
        body = self._bodies([digest]).get(digest)
        return None if body is None else _files_of(digest, body)

    def manifests(self, digests: Sequence[Sha256]) -> dict[Sha256, tuple[FileEntry, ...]]:
        """Return the files of several manifests, those that are held; as :meth:`manifest`."""
        found = self._bodies(digests)
        return {Sha256(digest): _files_of(Sha256(digest), body) for digest, body in found.items()}

    def _bodies(self, digests: Sequence[Sha256]) -> dict[str, str]:
        def ask(wanted: list[str]) -> dict[str, str]:
            found: dict[str, str] = {}
            for start in range(0, len(wanted), CHUNK):
                chunk = wanted[start : start + CHUNK]
                rows = self._rows(select(manifests).where(manifests.c.sha256.in_(chunk)))
                found |= {row["sha256"]: row["body"] for row in rows}
            return found

        return together.each_once(self.engine, "manifest", digests, ask)


def _files_of(digest: Sha256, body: str) -> tuple[FileEntry, ...]:
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
