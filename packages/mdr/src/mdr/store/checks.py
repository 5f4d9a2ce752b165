"""What ``fsck`` asks the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, text

from mdr.digest import Sha256
from mdr.store.schema import folder_revisions, manifests, objects, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Engine

CHUNK = 500


def integrity(engine: Engine) -> list[str]:
    """Run the database's own check; an empty list is good news."""
    if engine.dialect.name != "sqlite":
        return []
    with engine.connect() as connection:
        rows = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check"))]
        broken = list(connection.execute(text("PRAGMA foreign_key_check")))
    words = [row for row in rows if row != "ok"]
    return words + [f"a row of {row[0]} refers to nothing in {row[2]}" for row in broken]


def manifest_bodies(engine: Engine) -> Iterator[tuple[Sha256, str]]:
    """Yield every manifest with its key."""
    with engine.connect() as connection:
        for row in connection.execute(select(manifests.c.sha256, manifests.c.body)):
            yield Sha256(row.sha256), row.body


def version_rows(engine: Engine) -> Iterator[tuple[Sha256, Sha256]]:
    """Yield (file hash, manifest hash) of every version; folder revisions repeat their version's."""
    with engine.connect() as connection:
        for row in connection.execute(select(versions.c.sha256, versions.c.manifest_sha256)):
            yield Sha256(row.sha256), Sha256(row.manifest_sha256)


def revision_manifests(engine: Engine) -> Iterator[Sha256]:
    """Yield the manifest hash of every folder revision."""
    with engine.connect() as connection:
        for row in connection.execute(select(folder_revisions.c.manifest_sha256)):
            yield Sha256(row.manifest_sha256)


def object_names(engine: Engine, source_id: int, lost: Sequence[Sha256]) -> list[str]:
    """Return git's names, in one repository, of bytes with these hashes."""
    names: list[str] = []
    with engine.connect() as connection:
        for start in range(0, len(lost), CHUNK):
            chunk = list(lost[start : start + CHUNK])
            where = (objects.c.source_id == source_id) & objects.c.sha256.in_(chunk)
            names += [row.oid for row in connection.execute(select(objects.c.oid).where(where))]
    return names
