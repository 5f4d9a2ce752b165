"""Open the index database and bring it to the current schema: SQLite by default, PostgreSQL when told."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

from mdr.errors import StoreError
from mdr.settings import Pool
from mdr.store.locking import hold
from mdr.store.postgres import failure, hold_advisory, postgres_engine
from mdr.store.sqlite import sqlite_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Engine

HEAD_REVISION: Final = "0004"
"""The last step in ``migrations/versions``; a test compares it with what Alembic finds."""


def open_database(
    data: Path,
    *,
    create: bool,
    read_only: bool = False,
    address: str | None = None,
    pool: Pool | None = None,
) -> Engine | None:
    """Open the index and bring it to the current schema.

    Args:
        data: The data folder; it holds ``index.sqlite``.
        create: Whether to create the index when it does not exist.
        read_only: Whether to leave everything as it is; an index of an older schema is an error then.
        address: ``postgresql://...`` instead of the file.
        pool: Connections to PostgreSQL.

    Returns:
        ``None`` when it does not exist and is not to be created.

    Raises:
        mdr.errors.UsageError: bad-database, postgresql-missing.
        mdr.errors.StoreError: index-newer, index-older, index-unreadable, store-unwritable,
            database-unreachable, database-busy.
    """
    if address is not None:
        engine, where = postgres_engine(address, pool or Pool(), read_only=read_only), "database"
    else:
        path = data / "index.sqlite"
        if not path.exists() and not create:
            return None
        read_only = read_only or (not create and not os.access(data, os.W_OK))
        engine, where = sqlite_engine(path, read_only=read_only), f"index {path}"
    try:
        found = _revision(engine, where)
        if found is None and not create and address is not None:
            engine.dispose()
            return None
        if _behind(found):
            _bring_up(engine, where, data, found=found, read_only=read_only)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _bring_up(
    engine: Engine, where: str, data: Path, *, found: str | None, read_only: bool
) -> None:
    """Run the steps that are missing, unless another process just did."""
    if read_only:
        raise StoreError(
            "index-older",
            f"the {where} has the older schema {found}, and is only read here",
            hint="run any mdr command on it once, by whoever may write to it",
            data={"found": found, "known": HEAD_REVISION},
        )
    with _migrating(engine, data):
        if _behind(_revision(engine, where)):
            _migrate(engine)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Run one write transaction: all of it happens, or nothing.

    Raises:
        mdr.errors.StoreError: index-unreadable, store-unwritable, database-unreachable, database-busy.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as connection:
            immediate = connection.execution_options(mdr_immediate=True)
            with immediate.begin():
                yield immediate
    except SQLAlchemyError as error:
        raise unreadable(error) from error


def one_state(connection: Connection) -> Connection:
    """Let all statements of a transaction that only reads see the same state, as SQLite's do."""
    if connection.dialect.name == "postgresql":
        return connection.execution_options(isolation_level="REPEATABLE READ")
    return connection


def unreadable(error: Exception) -> StoreError:
    """Describe a failure of the database in one line."""
    import sys

    told = failure(error) if "psycopg" in sys.modules else None
    if told is not None:
        return told
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


def _behind(found: str | None) -> bool:
    """Say whether steps are missing; a database may be ahead, as long as it works with this program."""
    return found is None or found < HEAD_REVISION


def _revision(engine: Engine, where: str) -> str | None:
    """Return the schema step of the database, ``None`` for an empty one, without loading Alembic.

    Raises:
        mdr.errors.StoreError: index-newer, when the database needs a newer program than this.
    """
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
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
            f"the {where} was written by a newer mdr (schema {revision})",
            hint="use that mdr, or another folder with --data",
            data={"found": revision, "known": HEAD_REVISION},
        )
    return revision


def _migrating(engine: Engine, data: Path) -> AbstractContextManager[None]:
    if engine.dialect.name == "postgresql":
        return hold_advisory(engine, "migrate")
    return hold(data / "locks" / "migrate")


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
        command.upgrade(config, HEAD_REVISION)
