"""Back a registry up while it is read and written, whatever it is kept on.

The tables are read in one transaction, so that they fit each other. Their blobs are copied afterwards:
whatever a transaction names was durable before it, and nothing is ever removed. Blobs that an earlier
backup in the same folder has are not read again.

What is not kept: the words that search looks up, and what files name, since both are computed from the
blobs; the queue of the crawl workers, which fill it again.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mdr.digest import Sha256, sha256
from mdr.errors import StoreError
from mdr.registry.archive import FORMAT, Sink, sink
from mdr.registry.checking import sort_out
from mdr.registry.stores import Stores, open_stores
from mdr.version.manifest import parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Table

    from mdr.settings import Settings

    Progress = Callable[[str, int, int], None]

COMPUTED: Final = frozenset(["mentions", "words"])
"""Tables that a restore fills from the blobs."""
BATCH: Final = 256
ROWS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """What one backup wrote."""

    path: str
    snapshot: str
    rows: int
    blobs: int
    """Blobs that the snapshot needs."""
    new_blobs: int
    """Those of them that were not in the folder."""
    new_bytes: int
    missing: tuple[str, ...]
    """Hashes that the index names and the store lacks or holds damaged; fsck may repair them."""


def backup(settings: Settings, target: Path, progress: Progress) -> BackedUp:
    """Write a backup.

    Args:
        settings: What to back up.
        target: A folder, which may hold earlier backups, or a new file that ends in ``.tar``.
        progress: Called with (stage, done, total).

    Raises:
        mdr.errors.UsageError: backup-exists.
        mdr.errors.StoreError: registry-missing, store-unwritable, index-unreadable, ...
    """
    patient = replace(settings, pool=replace(settings.pool, statement_seconds=0))
    stores = open_stores(patient, create=False)
    if stores is None:
        raise StoreError(
            "registry-missing",
            "there is no registry to back up",
            hint="check --data and --database",
        )
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path(tempfile.mkdtemp(prefix="mdr-backup-"))
    try:
        with sink(target, moment) as out:
            return _write(stores, out, folder, target, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        stores.close()


def tables() -> list[Table]:
    """Return the tables that are kept, those first that others point to."""
    import mdr.store.schedule  # noqa: F401 - its tables are in the same metadata
    from mdr.store.schema import metadata

    return [each for each in metadata.sorted_tables if each.name not in COMPUTED]


def _write(stores: Stores, out: Sink, folder: Path, target: Path, progress: Progress) -> BackedUp:
    from mdr.store.engine import HEAD_REVISION

    progress("reading the index", 0, 0)
    kept = _tables(stores, folder)
    needed = sorted(_needed(folder))
    (folder / "blobs.gz").write_bytes(gzip.compress("".join(f"{each}\n" for each in needed).encode(), mtime=0))  # fmt: skip
    new, size, missing = _blobs(stores, out, needed, progress)
    manifest = {
        "format": FORMAT,
        "schema": HEAD_REVISION,
        "tables": kept,
        "files": {path.name: sha256(path.read_bytes()) for path in sorted(folder.iterdir())},
        "blobs": len(needed),
        "missing": list(missing),
    }
    out.seal(folder, manifest)
    return BackedUp(
        path=str(target),
        snapshot=str(manifest["snapshot"]),
        rows=sum(each["rows"] for each in kept.values()),
        blobs=len(needed),
        new_blobs=new,
        new_bytes=size,
        missing=missing,
    )


def _tables(stores: Stores, folder: Path) -> dict[str, dict[str, Any]]:
    """Write every table, all of them as they were at one moment."""
    with stores.index.reading() as connection:
        return {table.name: _table(connection, table, folder) for table in tables()}


def _table(connection: Connection, table: Table, folder: Path) -> dict[str, Any]:
    from sqlalchemy import select

    rows = 0
    ordered = select(table).order_by(*table.primary_key.columns)
    with gzip.GzipFile(folder / f"{table.name}.jsonl.gz", "wb", mtime=0) as file:
        for row in connection.execution_options(yield_per=ROWS).execute(ordered):
            file.write(json.dumps(list(row), ensure_ascii=False).encode() + b"\n")
            rows += 1
    return {"columns": [column.name for column in table.columns], "rows": rows}


def _needed(folder: Path) -> set[Sha256]:
    """Return every blob that the tables name: files of versions, and of all their folders."""
    from mdr.store.schema import manifests, versions

    needed: set[Sha256] = set()
    for row in read_rows((folder / "versions.jsonl.gz").read_bytes()):
        needed.add(Sha256(row[list(versions.c.keys()).index("sha256")]))
    for row in read_rows((folder / "manifests.jsonl.gz").read_bytes()):
        body = row[list(manifests.c.keys()).index("body")]
        needed |= {file.sha256 for file in parse_manifest(body)}
    return needed


def read_rows(data: bytes) -> Iterator[list[Any]]:
    """Yield the rows of a table's file."""
    import io

    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        for line in file:
            yield json.loads(line)


def _blobs(
    stores: Stores, out: Sink, needed: list[Sha256], progress: Progress
) -> tuple[int, int, tuple[str, ...]]:
    """Copy what the backup lacks; return how many, their bytes, and what the store itself lacks."""
    lacking = out.lacks(needed)
    new = size = 0
    missing: list[str] = []
    for start in range(0, len(lacking), BATCH):
        batch = lacking[start : start + BATCH]
        found, _ = sort_out(stores.blobs, batch)
        missing += [digest for digest in batch if digest not in found]
        out.keep(list(found.values()))
        new += len(found)
        size += sum(map(len, found.values()))
        progress("copying blobs", start + len(batch), len(lacking))
    return new, size, tuple(missing)
