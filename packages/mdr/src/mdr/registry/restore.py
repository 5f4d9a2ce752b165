"""Put a backup into an empty registry, on whatever that is kept: SQLite or PostgreSQL, a folder or S3.

Blobs first, each verified by its hash and durable; then every table in one transaction. A run that dies
leaves blobs, which the next run finds by content, and an index that is as empty as before.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mdr.digest import Sha256, is_sha256
from mdr.errors import IntegrityError, UsageError
from mdr.registry.archive import archive, damaged
from mdr.registry.backup import BATCH, ROWS, read_rows, tables
from mdr.registry.stores import Stores, open_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import Connection, Table

    from mdr.artifact.types import Artifact
    from mdr.registry.archive import Archive
    from mdr.settings import Settings
    from mdr.store.search import Document

    Progress = Callable[[str, int, int], None]

STATE: Final = "registry_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What one restore wrote, or would have."""

    snapshot: str
    rows: int
    blobs: int
    missing: tuple[str, ...]
    """Hashes that the registry lacked when it was backed up; fsck may repair them."""
    checked_only: bool


def restore(
    settings: Settings,
    source: Path,
    progress: Progress,
    *,
    snapshot: str | None = None,
    check_only: bool = False,
) -> Restored:
    """Restore a backup, or only check that it could be.

    Args:
        settings: Where to; nothing may be there.
        source: What ``backup`` wrote.
        progress: Called with (stage, done, total).
        snapshot: Name or number of an older one in a folder.
        check_only: Whether to read and verify everything and write nothing.

    Raises:
        mdr.errors.UsageError: backup-not-found, backup-newer, restore-not-empty.
        mdr.errors.StoreError: backup-damaged, store-unwritable, ...
    """
    with archive(source, snapshot) as found:
        _understood(found)
        needed = _names(found)
        stores = None if check_only else _empty(settings)
        try:
            _blobs(found, needed, stores, progress)
            rows = _rows(found, stores, progress)
        finally:
            if stores is not None:
                stores.close()
        return Restored(
            snapshot=found.name,
            rows=rows,
            blobs=len(needed),
            missing=tuple(found.manifest["missing"]),
            checked_only=check_only,
        )


def _understood(found: Archive) -> None:
    """Refuse tables and columns that this program does not have; older backups simply have fewer."""
    known = {table.name: set(table.columns.keys()) for table in tables()}
    told = found.manifest.get("tables")
    if not isinstance(told, dict) or not isinstance(found.manifest.get("missing"), list):
        raise damaged("the manifest")
    for name, words in told.items():
        columns = words.get("columns") if isinstance(words, dict) else None
        if not isinstance(columns, list):
            raise damaged("the manifest")
        if name not in known or not set(columns) <= known[name]:
            raise UsageError(
                "backup-newer",
                f"the backup has a table or column of {name[:80]!r} that this mdr does not know",
                hint="use the mdr that wrote it, or a newer one",
            )


def _empty(settings: Settings) -> Stores:
    """Open the place to restore into, and see that nothing is there."""
    from sqlalchemy import func, select

    patient = replace(settings, pool=replace(settings.pool, statement_seconds=0))
    stores = open_stores(patient, create=True)
    assert stores is not None
    with stores.index.reading() as connection:
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables()
        }
    full = next((name for name, count in counts.items() if count and name != STATE), None)
    if full is not None:
        stores.close()
        raise UsageError(
            "restore-not-empty",
            f"the registry to restore into is not empty: {full} has {counts[full]:,} rows",
            hint="name an empty folder with --data, or an empty database with --database",
        )
    return stores


def _names(found: Archive) -> list[Sha256]:
    try:
        names = gzip.decompress(found.file("blobs.gz")).decode("ascii").split()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise damaged("the list of blobs") from error
    if not all(is_sha256(name) for name in names):
        raise damaged("the list of blobs")
    return [Sha256(name) for name in names]


def _blobs(
    found: Archive, needed: Sequence[Sha256], stores: Stores | None, progress: Progress
) -> None:
    """Read and verify every blob, and keep it."""
    lost = set(found.manifest["missing"])

    def read() -> Iterator[bytes]:
        for done, digest in enumerate(needed, 1):
            try:
                data = found.blob(digest)
            except IntegrityError as error:
                raise damaged(f"the blob {digest[:16]}") from error
            if data is None and digest not in lost:
                raise damaged(f"the blob {digest[:16]}")
            if data is not None:
                yield data
            if done % BATCH == 0 or done == len(needed):
                progress("copying blobs", done, len(needed))

    if stores is not None:
        stores.blobs.put(read())
        return
    for _ in read():
        pass


def _rows(found: Archive, stores: Stores | None, progress: Progress) -> int:
    """Insert every table in one transaction, then what is computed from the blobs."""
    from mdr.store.engine import writing

    if stores is None:
        return sum(len(batch) for table in tables() for batch in _batches(found, table))
    rows = 0
    with writing(stores.index.engine) as connection:
        for table in tables():
            progress(f"writing {table.name}", 0, 0)
            for batch in _batches(found, table):
                rows += len(batch)
                _insert(connection, table, batch)
            _count_on(connection, table)
        _compute(stores, connection, progress)
    return rows


def _batches(found: Archive, table: Table) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a table; one that the backup does not have has none."""
    told = found.manifest["tables"].get(table.name)
    if told is None:
        return
    columns, seen = told["columns"], 0
    batch: list[dict[str, Any]] = []
    try:
        for row in read_rows(found.file(f"{table.name}.jsonl.gz")):
            batch.append(dict(zip(columns, map(_storable, row), strict=True)))
            seen += 1
            if len(batch) >= ROWS:
                yield batch
                batch = []
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        raise damaged(table.name) from error
    if seen != told.get("rows"):
        raise damaged(table.name)
    if batch:
        yield batch


def _insert(connection: Connection, table: Table, batch: list[dict[str, Any]]) -> None:
    from sqlalchemy import insert, text

    if table.name == STATE:  # no reader may meet a number that meant another content before
        changes = max(row["changes"] for row in batch)
        connection.execute(
            text("UPDATE registry_state SET changes = changes + :more"), {"more": changes + 1}
        )
        return
    connection.execute(insert(table), batch)


def _count_on(connection: Connection, table: Table) -> None:
    """Let PostgreSQL's next key be one that is free."""
    from sqlalchemy import Integer, text

    (key, *more) = table.primary_key.columns
    if connection.dialect.name != "postgresql" or more or not isinstance(key.type, Integer):
        return
    sequence = connection.execute(
        text("SELECT pg_get_serial_sequence(:table, :key)"),
        {"table": table.name, "key": key.name},
    ).scalar()
    if sequence is not None:
        connection.execute(
            text(
                f"SELECT setval(:sequence, (SELECT coalesce(max({key.name}), 0) + 1 FROM {table.name}), false)"  # noqa: S608 - names of our own tables
            ),
            {"sequence": sequence},
        )


def _compute(stores: Stores, connection: Connection, progress: Progress) -> None:
    """Fill what search looks up, from the blobs that were just restored."""
    from sqlalchemy import select

    from mdr.store.index import artifact_of
    from mdr.store.schema import artifacts, sources

    columns = select(artifacts, sources.c.host, sources.c.repository)
    join = columns.join(sources, sources.c.id == artifacts.c.source_id)
    rows = [
        (artifact_of(dict(row)), row["latest_sha256"])
        for row in connection.execute(join.order_by(artifacts.c.id)).mappings()
        if row["latest_sha256"] is not None
    ]
    for start in range(0, len(rows), BATCH):
        share = rows[start : start + BATCH]
        stores.search.refresh(connection, _documents(stores, connection, share))
        progress("writing the words of search", start + len(share), len(rows))


def _documents(
    stores: Stores, connection: Connection, rows: Sequence[tuple[Artifact, Sha256]]
) -> list[Document]:
    from mdr.registry.telling import document
    from mdr.store.withdrawn import tombstones

    buried = tombstones(connection, (digest for _, digest in rows))
    texts = stores.blobs.get_many([digest for _, digest in rows if digest not in buried])
    return [document(artifact, digest, texts.get(digest)) for artifact, digest in rows]


def _storable(value: Any) -> Any:
    return value.replace("\x00", "\ufffd") if isinstance(value, str) else value
