"""Lists that pages show: what is new, what an owner or a repository has, where bytes live, all of it in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select

from mdr.store.schema import artifacts, grades, sources, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Select

    from mdr.digest import Sha256
    from mdr.store.index import Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One artifact in a list."""

    id: str
    host: str
    repository: str
    path: str
    name: str
    kind: str
    description: str | None
    grade: str | None
    label: str | None
    committed: str | None
    """Of the latest version, RFC 3339 UTC."""
    size: int | None
    present: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSource:
    """One repository in a list."""

    host: str
    repository: str
    stars: int | None
    license: str | None
    pushed: str | None
    artifacts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One version whose file has the bytes asked about."""

    id: str
    host: str
    repository: str
    path: str
    name: str
    kind: str
    label: str
    committed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """How much the registry holds."""

    sources: int
    artifacts: int
    """That exist at the head of their repository."""
    versions: int


def sums(index: Index) -> Sums:
    """Count everything."""
    with index.reading() as connection:
        return Sums(
            sources=connection.scalar(select(func.count()).select_from(sources)) or 0,
            artifacts=connection.scalar(
                select(func.count()).select_from(artifacts).where(artifacts.c.present)
            )
            or 0,
            versions=connection.scalar(select(func.count()).select_from(versions)) or 0,
        )


def newest(index: Index, ruleset: str, limit: int) -> tuple[Listed, ...]:
    """Return the artifacts whose latest version was committed last."""
    order = (versions.c.committed.desc(), artifacts.c.number)
    return _listed(index, _latest(ruleset).where(artifacts.c.present).order_by(*order).limit(limit))


def of_source(
    index: Index, source_id: int, ruleset: str, *, offset: int, limit: int
) -> tuple[Listed, ...]:
    """Return the artifacts of a repository by path, those that still exist first."""
    order = (artifacts.c.present.desc(), artifacts.c.path)
    rows = _latest(ruleset).where(artifacts.c.source_id == source_id).order_by(*order)
    return _listed(index, rows.offset(offset).limit(limit))


def count_of_source(index: Index, source_id: int) -> int:
    """Count the artifacts of a repository, those of deleted files included."""
    with index.reading() as connection:
        where = artifacts.c.source_id == source_id
        return connection.scalar(select(func.count()).select_from(artifacts).where(where)) or 0


def of_owner(index: Index, owner: str) -> tuple[ListedSource, ...]:
    """Return the repositories of an owner on every host, by host and name; case is ignored."""
    low = owner.lower() + "/"
    held = func.count(artifacts.c.id).filter(artifacts.c.present)
    columns = (
        sources.c.host, sources.c.repository, sources.c.stars, sources.c.license, sources.c.pushed,
    )  # fmt: skip
    statement = (
        select(*columns, held.label("artifacts"))
        .select_from(sources.outerjoin(artifacts, artifacts.c.source_id == sources.c.id))
        .where(sources.c.repository_key >= low, sources.c.repository_key < low + "\U0010ffff")
        .group_by(sources.c.id, *columns, sources.c.repository_key)
        .order_by(sources.c.host, sources.c.repository_key)
    )
    with index.reading() as connection:
        rows = [dict(row) for row in connection.execute(statement).mappings()]
    found = [ListedSource(**row) for row in rows]
    return tuple(each for each in found if each.repository.lower().startswith(low))


def with_bytes(index: Index, digest: Sha256, limit: int) -> tuple[Place, ...]:
    """Return the versions whose file has exactly these bytes, newest first."""
    statement = (
        select(
            artifacts.c.id, sources.c.host, sources.c.repository, artifacts.c.path,
            artifacts.c.name, artifacts.c.kind, versions.c.label, versions.c.committed,
        )
        .select_from(
            versions.join(artifacts, artifacts.c.id == versions.c.artifact_id).join(
                sources, sources.c.id == artifacts.c.source_id
            )
        )
        .where(versions.c.sha256 == digest)
        .order_by(versions.c.committed.desc(), artifacts.c.id, versions.c.label)
        .limit(limit)
    )  # fmt: skip
    with index.reading() as connection:
        return tuple(Place(**row) for row in connection.execute(statement).mappings())


def last_number(index: Index) -> int:
    """Return the highest number of an artifact, 0 when there is none."""
    with index.reading() as connection:
        return connection.scalar(select(func.max(artifacts.c.number))) or 0


def numbered(index: Index, first: int, last: int) -> tuple[tuple[str, str], ...]:
    """Return (id, when the latest version was committed) of artifacts ``first`` to ``last`` that exist."""
    statement = (
        select(artifacts.c.id, versions.c.committed)
        .select_from(artifacts.join(versions, _is_latest()))
        .where(artifacts.c.present, artifacts.c.number.between(first, last))
        .order_by(artifacts.c.number)
    )
    with index.reading() as connection:
        return tuple((row[0], row[1]) for row in connection.execute(statement))


def beside(index: Index, wanted: str, most: int) -> tuple[tuple[str, str], ...]:
    """Return (host, repository) of those next to a name in the order of names, for suggestions.

    Args:
        index: What is asked.
        wanted: ``owner`` or ``owner/repo``, whatever its case.
        most: Repositories on each side.
    """
    key, name = sources.c.repository_key, wanted.lower()
    columns = select(sources.c.host, sources.c.repository).limit(most)
    after = columns.where(key >= name).order_by(key)
    before = columns.where(key < name).order_by(key.desc())
    with index.reading() as connection:
        found = [row for each in (before, after) for row in connection.execute(each)]
    return tuple((host, repository) for host, repository in found)


def _is_latest() -> Any:
    return and_(versions.c.artifact_id == artifacts.c.id, versions.c.label == artifacts.c.latest)


def _latest(ruleset: str) -> Select[Any]:
    graded = and_(
        grades.c.sha256 == versions.c.sha256,
        grades.c.kind == artifacts.c.kind,
        grades.c.ruleset == ruleset,
    )
    return (
        select(
            artifacts.c.id, sources.c.host, sources.c.repository, artifacts.c.path,
            artifacts.c.name, artifacts.c.kind, artifacts.c.description, artifacts.c.present,
            grades.c.grade, versions.c.label, versions.c.committed, versions.c.size,
        )
        .select_from(
            artifacts.join(sources, sources.c.id == artifacts.c.source_id)
            .outerjoin(versions, _is_latest())
            .outerjoin(grades, graded)
        )
    )  # fmt: skip


def _listed(index: Index, statement: Select[Any]) -> tuple[Listed, ...]:
    with index.reading() as connection:
        rows: Sequence[Any] = connection.execute(statement).mappings().all()
    return tuple(Listed(**row) for row in rows)
