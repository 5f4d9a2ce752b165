"""The index in one file: SQLite in WAL mode, one writer at a time.

Readers never wait for an indexer. ``synchronous=FULL`` makes a committed transaction survive a loss of
power. Writers start with ``BEGIN IMMEDIATE``: the second of two indexers waits instead of failing
half-way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection, Engine

BUSY_SECONDS: Final = 120


def sqlite_engine(path: Path, *, read_only: bool) -> Engine:
    """Make an engine for a database file, which need not exist unless it is only read."""
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
