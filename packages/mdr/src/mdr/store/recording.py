"""Write what one indexing found: one transaction, after which the blobs it names are long durable.

Recording the same line again changes nothing. A version is found again by its commit and never
rewritten; a label that an artifact has is never given to another commit. Versions that a force-push
took off the line stay, below the newest one, by date.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from mdr.digest import Sha256
from mdr.errors import StoreError
from mdr.store.rows import NewVersion, Offered, Recorded
from mdr.store.schema import (
    artifacts,
    folder_revisions,
    grades,
    manifests,
    mentions,
    objects,
    skips,
    sources,
    versions,
)
from mdr.store.state import changed
from mdr.store.withdrawn import newest_offered, tombstones
from mdr.version.labels import label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mdr.artifact.types import Artifact
    from mdr.store.rows import Grade, HostWords, NewArtifact, NewLine

Row = dict[str, Any]


def record(connection: Connection, source_id: int, line: NewLine) -> Recorded:
    """Record a line inside an open write transaction.

    Args:
        connection: In a transaction that writers hold alone.
        source_id: The repository, from :func:`ensure_source`.
        line: What was found; every blob it names is in the blob store.

    Returns:
        How many versions are new, and which artifacts look different to readers now. Whoever asked
        raises the state (:func:`mdr.store.state.changed`) as the last statement, when ``changed``.

    Raises:
        mdr.errors.StoreError: index-moved.
    """
    mine = sources.c.id == source_id
    head = connection.execute(select(sources.c.head).where(mine).with_for_update()).scalar_one()
    if head not in {line.base, line.head}:
        raise StoreError(
            "index-moved",
            "another run indexed this repository meanwhile, and its lock was lost",
            hint="run it again",
            data={"expected": line.base, "found": head},
        )
    _insert_missing(
        connection,
        manifests,
        [{"sha256": key, "body": body} for key, body in line.manifests.items()],
    )
    _insert_missing(
        connection,
        objects,
        [
            {"source_id": source_id, "oid": oid, "sha256": digest, "size": size}
            for oid, (digest, size) in line.objects.items()
        ],
    )
    _save_grades(connection, line.grades)
    known = _known_versions(connection, source_id)
    shown = _artifact_rows(connection, source_id)
    inserts: list[Row] = []
    updates: list[Row] = []
    lines: dict[str, list[Row]] = {}
    for each in line.artifacts:
        fresh, moved, rows = _plan(each, known.get(each.artifact.id, []))
        inserts += fresh
        updates += moved
        if rows:
            lines[each.artifact.id] = rows
    described, refreshed, latest = _describe(connection, source_id, line, lines, shown)
    _save_artifacts(connection, described, shown)
    _insert(connection, versions, inserts)
    _move(connection, updates)
    _save_revisions(connection, source_id, line.artifacts)
    _hide_rest(connection, source_id, {each.artifact.id for each in line.artifacts}, shown)
    connection.execute(delete(skips).where(skips.c.source_id == source_id))
    reasons = {each.path: each.reason for each in line.skipped}
    _insert(
        connection,
        skips,
        [{"source_id": source_id, "path": path, "reason": why} for path, why in reasons.items()],
    )
    connection.execute(
        update(sources)
        .where(mine)
        .values(head=line.head, branch=line.branch, location=line.location, commits=line.commits)
    )
    return Recorded(
        new_versions=len(inserts),
        refreshed=tuple(refreshed),
        latest=latest,
        changed=bool(inserts or updates or refreshed or line.head != head),
    )


def _describe(
    connection: Connection,
    source_id: int,
    line: NewLine,
    lines: Mapping[str, Sequence[Row]],
    shown: Mapping[str, Row],
) -> tuple[list[Row], list[Artifact], dict[str, Offered]]:
    """Return (rows of artifacts, artifacts that look different now, what each offers)."""
    offered = newest_offered(connection, lines)
    buried = tombstones(connection, (row["sha256"] for row in offered.values()))
    described: list[Row] = []
    refreshed: list[Artifact] = []
    latest: dict[str, Offered] = {}
    for each in line.artifacts:
        artifact, row = each.artifact, offered.get(each.artifact.id)
        if row is not None:
            before = shown.get(artifact.id)
            if row["sha256"] != each.versions[-1].sha256 and before is not None:
                artifact = replace(artifact, description=before["description"])
            artifact = replace(artifact, latest=row["label"])
            digest = Sha256(row["sha256"])
            latest[artifact.id] = Offered(sha256=digest, withdrawn=digest in buried)
        described.append(_artifact_row(source_id, artifact, row))
        if not _same(described[-1], shown.get(artifact.id)):
            refreshed.append(artifact)
    return described, refreshed, latest


def save_grades(connection: Connection, new: Sequence[Grade]) -> None:
    """Record verdicts of the audit; one that is there already stays."""
    if new:
        _save_grades(connection, new)
        changed(connection)


def _save_grades(connection: Connection, new: Iterable[Grade]) -> None:
    rows = [
        {
            "sha256": each.sha256,
            "kind": each.kind,
            "ruleset": each.ruleset,
            "grade": each.grade,
            "penalty": each.penalty,
        }
        for each in new
    ]
    _insert_missing(connection, grades, rows)


def ensure_source(connection: Connection, host: str, repository: str, location: str) -> int:
    """Return the id of a repository, which is created when missing. Its first spelling stays."""
    key = repository.lower()
    where = (sources.c.host == host) & (sources.c.repository_key == key)
    found = connection.execute(select(sources.c.id).where(where)).scalar()
    if found is None:
        values = {
            "host": host,
            "repository": repository,
            "repository_key": key,
            "location": location,
            "commits": 0,
        }
        _insert_missing(connection, sources, [values])
        found = connection.execute(select(sources.c.id).where(where)).scalar_one()
    return int(found)


def save_words(connection: Connection, host: str, repository: str, words: HostWords) -> None:
    """Replace what the host says about a repository."""
    where = (sources.c.host == host) & (sources.c.repository_key == repository.lower())
    values = {
        "stars": words.stars,
        "license": words.license,
        "pushed": words.pushed,
        "etag": words.etag,
        "retry_after": words.retry_after,
    }
    connection.execute(update(sources).where(where).values(**values))
    changed(connection)


def _known_versions(connection: Connection, source_id: int) -> dict[str, list[Row]]:
    rows = connection.execute(
        select(versions)
        .join(artifacts, artifacts.c.id == versions.c.artifact_id)
        .where(artifacts.c.source_id == source_id)
        .order_by(versions.c.artifact_id, versions.c.position)
    )
    known: dict[str, list[Row]] = {}
    for row in rows.mappings():
        known.setdefault(row["artifact_id"], []).append(dict(row))
    return known


def _artifact_rows(connection: Connection, source_id: int) -> dict[str, Row]:
    rows = connection.execute(select(artifacts).where(artifacts.c.source_id == source_id))
    return {row["id"]: dict(row) for row in rows.mappings()}


def _plan(new: NewArtifact, known: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return (rows to insert, rows whose place changes, all rows oldest first)."""
    by_commit = {row["commit_oid"]: row for row in known}
    labels = {row["label"] for row in known}
    fresh: list[Row] = []
    line: list[Row] = []
    for version in new.versions:
        row = by_commit.pop(version.commit, None)
        if row is None:
            name = label(version.commit, version.time, labels)
            assert name is not None  # the replay leaves out commits without a date
            labels.add(name)
            row = _version_row(new.artifact.id, version, name)
            fresh.append(row)
        line.append(row)
    ordered = _order(line, list(by_commit.values()))
    moved = []
    on_line = {id(row) for row in line}
    for position, row in enumerate(ordered):
        place = {"position": position, "on_line": id(row) in on_line}
        if "id" in row and (row["position"], bool(row["on_line"])) != (position, place["on_line"]):
            moved.append(
                {"row_id": row["id"], **{f"new_{key}": value for key, value in place.items()}}
            )
        row.update(place)
    return fresh, moved, ordered


def _order(line: list[Row], orphans: list[Row]) -> list[Row]:
    """Put versions that left the line among those on it, by date, but never above the newest."""
    ordered = list(line)
    for orphan in sorted(
        orphans, key=lambda row: (row["committed"], row["position"]), reverse=True
    ):
        place = max(len(ordered) - 1, 0) if line else len(ordered)
        while place > 0 and ordered[place - 1]["committed"] > orphan["committed"]:
            place -= 1
        ordered.insert(place, orphan)
    return ordered


def _version_row(artifact_id: str, version: NewVersion, name: str) -> Row:
    return {
        "artifact_id": artifact_id,
        "label": name,
        "commit_oid": version.commit,
        "committed": version.committed,
        "size": version.size,
        "sha256": version.sha256,
        "manifest_sha256": version.manifest_sha256,
        "omitted": json.dumps([[each.path, each.reason] for each in version.omitted]),
    }


def _artifact_row(source_id: int, artifact: Artifact, latest: Mapping[str, Any] | None) -> Row:
    return {
        "id": artifact.id,
        "source_id": source_id,
        "path": artifact.path,
        "name": artifact.name,
        "name_key": artifact.name.lower(),
        "kind": artifact.kind.value,
        "description": artifact.description,
        "latest": artifact.latest,
        "latest_sha256": latest["sha256"] if latest is not None else None,
        "present": artifact.present,
        "previously": json.dumps(list(artifact.previously)),
    }


def _same(row: Row, shown: Row | None) -> bool:
    """Say whether readers see no difference."""
    return shown is not None and all(shown[key] == value for key, value in row.items())


def _save_artifacts(connection: Connection, rows: Sequence[Row], shown: Mapping[str, Row]) -> None:
    """Write the rows that are new and those that changed; before the versions that point to them."""
    _insert(connection, artifacts, [row for row in rows if row["id"] not in shown])
    for row in rows:
        known = shown.get(row["id"])
        if known is not None and not _same(row, known):
            where = artifacts.c.id == row["id"]
            connection.execute(update(artifacts).where(where).values(**row))


def _move(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        statement = (
            update(versions)
            .where(versions.c.id == bindparam("row_id"))
            .values(position=bindparam("new_position"), on_line=bindparam("new_on_line"))
        )
        connection.execute(statement, list(rows))


def _save_revisions(connection: Connection, source_id: int, new: Iterable[NewArtifact]) -> None:
    wanted = {
        (each.artifact.id, version.commit): version.revisions
        for each in new
        for version in each.versions
        if version.revisions
    }
    if not wanted:
        return
    ids = connection.execute(
        select(versions.c.id, versions.c.artifact_id, versions.c.commit_oid)
        .join(artifacts, artifacts.c.id == versions.c.artifact_id)
        .where(artifacts.c.source_id == source_id)
    )
    rows = [
        {
            "version_id": row.id,
            "position": position,
            "commit_oid": revision.commit,
            "committed": revision.committed,
            "manifest_sha256": revision.manifest_sha256,
        }
        for row in ids
        for position, revision in enumerate(wanted.get((row.artifact_id, row.commit_oid), ()))
    ]
    _insert_missing(connection, folder_revisions, rows)


def _hide_rest(
    connection: Connection, source_id: int, kept: set[str], shown: Mapping[str, Row]
) -> None:
    """Mark artifacts that left the line altogether; their versions stay, nothing finds them by a host."""
    gone = [key for key, row in shown.items() if key not in kept and row["present"]]
    for key in gone:
        where = (artifacts.c.id == key) & (artifacts.c.source_id == source_id)
        connection.execute(update(artifacts).where(where).values(present=False, mentions_of=None))
        connection.execute(delete(mentions).where(mentions.c.artifact_id == key))


def _insert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))


def _insert_missing(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows whose key is new; others stay as they are.

    In the order of their keys, so that two transactions with the same rows never wait crosswise.
    """
    if not rows:
        return
    keys = [column.name for column in table.primary_key if column.name in rows[0]]
    rows = sorted(rows, key=lambda row: [row[key] for key in keys])
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        connection.execute(postgresql.insert(table).on_conflict_do_nothing(), list(rows))
    else:
        from sqlalchemy.dialects import sqlite

        connection.execute(sqlite.insert(table).on_conflict_do_nothing(), list(rows))
