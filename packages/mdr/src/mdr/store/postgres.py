"""The index on a PostgreSQL server: connections that heal, time limits, and locks between machines.

Several machines may index at once. What a file lock does in a data folder, an advisory lock does here; a
connection that dies gives its locks back. Such a lock belongs to a session: ``--database`` must name the
server itself, or a pooler in session mode.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mdr.digest import sha256
from mdr.errors import StoreError, UsageError
from mdr.settings import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Engine

SCHEMES: Final = ("postgresql", "postgres")
CONNECT_SECONDS: Final = 10
IDLE_TRANSACTION_SECONDS: Final = 600
"""After which the server ends a transaction that asks nothing: a machine that died must hold no lock."""
RECYCLE_SECONDS: Final = 1_800
KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def database_url(text: str) -> URL:
    """Read ``postgresql://user:password@host:port/name?options``.

    Raises:
        mdr.errors.UsageError: bad-database; the address is not repeated, since it may hold a password.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in SCHEMES or not url.database:
        raise UsageError(
            "bad-database",
            "the address of the database is not one of PostgreSQL",
            hint="write it as postgresql://user@host:5432/name, or leave it out to use SQLite",
        )
    return url.set(drivername="postgresql+psycopg")


def postgres_engine(text: str, pool: Pool, *, read_only: bool) -> Engine:
    """Make an engine; it connects on first use.

    Raises:
        mdr.errors.UsageError: bad-database, postgresql-missing.
    """
    url = database_url(text)
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            "postgresql-missing",
            "a PostgreSQL database needs the driver psycopg, which is not installed",
            hint="install mdr-registry[server]",
        ) from error
    from sqlalchemy import create_engine, event

    engine = create_engine(
        url,
        connect_args={"connect_timeout": CONNECT_SECONDS, "application_name": "mdr", **KEEPALIVE},
        pool_size=pool.size,
        max_overflow=pool.size,
        pool_timeout=pool.wait_seconds,
        pool_recycle=RECYCLE_SECONDS,
        pool_pre_ping=True,
        pool_use_lifo=True,
        hide_parameters=True,
    )

    class SelfClosing(psycopg.Connection[Any]):
        """Closes when collected, in the process that opened it: a pool that goes with its engine closes nothing."""

        opened_by = 0

        def __del__(self, _warn: Any = None, /) -> None:
            if not self.closed and self.opened_by == os.getpid():
                self.close()

    def connect(_dialect: Any, _record: Any, words: list[Any], named: dict[str, Any]) -> Any:
        connection = SelfClosing.connect(*words, **named)
        connection.opened_by = os.getpid()
        return connection

    def connected(connection: Any, _record: Any) -> None:
        settings = {
            "statement_timeout": f"{pool.statement_seconds}s",
            "idle_in_transaction_session_timeout": f"{IDLE_TRANSACTION_SECONDS}s",
            "timezone": "UTC",
            "jit": "off",  # compiling takes longer than any query of ours
            "max_parallel_workers_per_gather": "0",  # starting them does, too
            "default_transaction_read_only": "on" if read_only else "off",
        }
        connection.autocommit = True
        each = ", ".join(["set_config(%s, %s, false)"] * len(settings))
        values = [word for setting in settings.items() for word in setting]
        connection.execute(f"SELECT {each}", values)
        connection.autocommit = False

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "connect", connected)
    return engine


def lock_key(name: str) -> int:
    """Return the 64-bit number of a lock's name."""
    return int.from_bytes(bytes.fromhex(sha256(f"mdr\n{name}".encode())[:16]), signed=True)


@contextmanager
def hold_advisory(engine: Engine, name: str) -> Iterator[None]:
    """Hold a lock of the whole database inside the block, waiting for whoever has it.

    The connection is its own, outside the pool: processes that are started meanwhile must not share it.

    Raises:
        mdr.errors.StoreError: database-unreachable.
    """
    import psycopg
    from sqlalchemy.exc import SQLAlchemyError

    from mdr.store.engine import unreadable

    try:
        pooled = engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()
    except SQLAlchemyError as error:
        raise unreadable(error) from error
    assert connection is not None
    try:
        try:
            connection.autocommit = True
            connection.execute("SET statement_timeout = 0")
            connection.execute("SELECT pg_advisory_lock(%s)", (lock_key(name),))
        except psycopg.Error as error:
            raise unreadable(error) from error
        yield
    finally:
        with suppress(psycopg.Error):
            connection.close()  # ends the session, and with it the lock


def failure(error: BaseException) -> StoreError | None:
    """Describe what PostgreSQL or the way to it said; ``None`` when it is something else."""
    import psycopg
    from sqlalchemy.exc import TimeoutError as PoolTimeout

    cause = getattr(error, "orig", None) or error
    if isinstance(error, PoolTimeout):
        return StoreError(
            "database-busy",
            "no connection to the database became free in time",
            hint="ask again; many at once need a larger pool or more processes",
        )
    if not isinstance(cause, psycopg.Error):
        return None
    words = _first_line(cause)
    if isinstance(cause, psycopg.errors.DiskFull):
        return StoreError(
            "store-unwritable",
            f"the database cannot be written: {words}",
            hint="free space on the database's disk",
        )
    if isinstance(cause, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        return StoreError("database-busy", f"the database took too long: {words}", hint="ask again")
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreError(
            "database-unreachable",
            f"the database cannot be reached: {words}",
            hint="check that it runs and what MDR_DATABASE or --database names",
        )
    return StoreError(
        "index-unreadable",
        f"the index cannot be read or written: {words}",
        hint="run mdr fsck, and read the database's own log",
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
