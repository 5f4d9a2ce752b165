"""Open the index database: SQLite by default, anything SQLAlchemy reaches when given a URL.

SQLite runs in WAL mode, so that readers never wait for an indexer, with ``synchronous=FULL``, so that a
committed transaction survives a loss of power. Writers start with ``BEGIN IMMEDIATE``: the second of two
indexers waits instead of failing half-way.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mdr.errors import StoreError
from mdr.store.locking import hold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Engine

HEAD_REVISION: Final = "0002"
"""The last step in ``migrations/versions``; a test compares it with what Alembic finds."""
BUSY_SECONDS: Final = 120


def open_database(data: Path, *, create: bool, read_only: bool = False) -> Engine | None:
    """Open ``index.sqlite`` in the data folder and bring it to the current schema.

    Args:
        data: The data folder.
        create: Whether to create the index when it does not exist.
        read_only: Whether to leave the folder as it is; an index of an older schema is an error then.

    Returns:
        ``None`` when it does not exist and is not to be created.

    Raises:
        mdr.errors.StoreError: index-newer, index-older, index-unreadable, store-unwritable.
    """
    path = data / "index.sqlite"
    if not path.exists() and not create:
        return None
    read_only = read_only or (not create and not os.access(data, os.W_OK))
    engine = _sqlite(path, read_only=read_only)
    found = _revision(engine, path)
    if _behind(found) and read_only:
        raise StoreError(
            "index-older",
            f"the index {path} has the older schema {found}, and is only read here",
            hint="run any mdr command with --data on that folder once, by whoever may write to it",
            data={"found": found, "known": HEAD_REVISION},
        )
    if _behind(found):
        with hold(data / "locks" / "migrate"):
            if _behind(_revision(engine, path)):
                _migrate(engine)
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Run one write transaction: all of it happens, or nothing."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as connection:
            immediate = connection.execution_options(mdr_immediate=True)
            with immediate.begin():
                yield immediate
    except SQLAlchemyError as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> StoreError:
    """Describe a failure of the database in one line."""
    words = str(getattr(error, "orig", None) or error).splitlines()[0]
    if "disk" in words:  # "database or disk is full", "disk I/O error"
        return StoreError(
            "store-unwritable",
            f"the index cannot be written: {words}",
            hint="check free space and the disk's health; mdr fsck --repair frees what dead runs left",
        )
    return StoreError(
        "index-unreadable",
        f"the index cannot be read or written: {words}",
        hint="run mdr fsck; if the file is lost, index the sources again",
    )


def _sqlite(path: Path, *, read_only: bool) -> Engine:
    import sqlite3

    from sqlalchemy import URL, create_engine, event

    address = f"{path.absolute().as_uri()}?{read_mode(path) if read_only else 'mode=rwc'}"
    settings = ["foreign_keys=ON"]
    if not read_only:
        settings += ["journal_mode=WAL", "synchronous=FULL"]

    class SelfClosing(sqlite3.Connection):
        """Closes when collected: a pool that goes with its engine closes nothing itself."""

        def __del__(self) -> None:
            self.close()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            address,
            timeout=BUSY_SECONDS,
            uri=True,
            check_same_thread=False,
            factory=SelfClosing,
        )

    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)), creator=connect, hide_parameters=True
    )

    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are ours, below
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("mdr_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begin)
    return engine


def read_mode(path: Path) -> str:
    """Return SQLite's words for how to read: beside a log the usual way, without one on a read-only disk as it stands.

    A reader of a WAL database makes a small file beside it. Where that cannot be, SQLite must be told
    that nothing changes, which is only true while no log waits to be folded in.
    """
    log = path.with_name(path.name + "-wal")
    waiting = log.exists() and log.stat().st_size > 0
    writable = os.access(path.parent, os.W_OK)
    return "mode=ro" if waiting or writable else "mode=ro&immutable=1"


def _behind(found: str | None) -> bool:
    """Say whether steps are missing; a database may be ahead, as long as it works with this program."""
    return found is None or found < HEAD_REVISION


def _revision(engine: Engine, path: Path) -> str | None:
    """Return the schema step of the database, ``None`` for an empty one, without loading Alembic.

    Raises:
        mdr.errors.StoreError: index-newer, when the database needs a newer program than this.
    """
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as connection:
            tables = text("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'")
            if not connection.execute(tables).scalar_one():
                return None
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            revision = None if found is None else str(found)
            newer = revision is not None and revision > HEAD_REVISION
            needs = text("SELECT needs FROM registry_state WHERE id = 1")
            needed = connection.execute(needs).scalar() if newer else None
    except SQLAlchemyError as error:
        raise unreadable(error) from error
    if newer and (needed is None or str(needed) > HEAD_REVISION):
        raise StoreError(
            "index-newer",
            f"the index {path} was written by a newer mdr (schema {revision})",
            hint="use that mdr, or another folder with --data",
            data={"found": revision, "known": HEAD_REVISION},
        )
    return revision


def _migrate(engine: Engine) -> None:
    import logging
    from pathlib import Path as Folder

    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(Folder(__file__).parent / "migrations"))
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
