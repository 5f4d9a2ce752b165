"""Open the index database: SQLite by default, anything SQLAlchemy reaches when given a URL.

SQLite runs in WAL mode, so that readers never wait for an indexer, with ``synchronous=FULL``, so that a
committed transaction survives a loss of power. Writers start with ``BEGIN IMMEDIATE``: the second of two
indexers waits instead of failing half-way.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mdr.errors import StoreError
from mdr.store.locking import hold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Engine

HEAD_REVISION: Final = "0001"
"""The last step in ``migrations/versions``; a test compares it with what Alembic finds."""
BUSY_SECONDS: Final = 120


def open_database(data: Path, *, create: bool) -> Engine | None:
    """Open ``index.sqlite`` in the data folder and bring it to the current schema.

    Args:
        data: The data folder.
        create: Whether to create the index when it does not exist.

    Returns:
        ``None`` when it does not exist and is not to be created.

    Raises:
        mdr.errors.StoreError: index-newer, index-unreadable, store-unwritable.
    """
    path = data / "index.sqlite"
    if not path.exists() and not create:
        return None
    engine = _sqlite(path)
    if _revision(engine, path) != HEAD_REVISION:
        with hold(data / "locks" / "migrate"):
            if _revision(engine, path) != HEAD_REVISION:
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
    return StoreError(
        "index-unreadable",
        f"the index cannot be read or written: {words}",
        hint="run mdr fsck; if the file is lost, index the sources again",
    )


def _sqlite(path: Path) -> Engine:
    from sqlalchemy import create_engine, event

    engine = create_engine(
        f"sqlite+pysqlite:///{path}", connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True
    )

    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are ours, below
        cursor = connection.cursor()
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("mdr_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begin)
    return engine


def _revision(engine: Engine, path: Path) -> str | None:
    """Return the schema step of the database, ``None`` for an empty one, without loading Alembic."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as connection:
            tables = text("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'")
            if not connection.execute(tables).scalar_one():
                return None
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except SQLAlchemyError as error:
        raise unreadable(error) from error
    revision = None if found is None else str(found)
    if revision is not None and revision > HEAD_REVISION:
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
