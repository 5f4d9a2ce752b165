"""One number that grows whenever what readers see changes: the key of every cache above.

It is a row that each writing transaction raises as its last statement, so that a reader who sees the new
number sees the new content, and nobody sees it before. Badge views, tokens and the audit trail leave it
alone.

On SQLite, ``PRAGMA data_version`` of one connection kept for this says within microseconds that nobody
wrote; only after a write is the row read again. On PostgreSQL it is one query on a connection kept open.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

QUERY = "SELECT changes FROM registry_state WHERE id = 1"


class HasState(Protocol):
    """What :func:`state_token` needs of :class:`mdr.registry.stores.Stores`."""

    @property
    def state(self) -> State:
        """The reader of the number."""
        ...


def state_token(stores: HasState) -> str:
    """Return a word that is another one after every change that readers can see.

    Raises:
        mdr.errors.StoreError: index-unreadable.
    """
    return stores.state.token()


def changed(connection: Connection) -> None:
    """Raise the number; the last statement of a transaction, since others wait for this row."""
    connection.execute(text("UPDATE registry_state SET changes = changes + 1 WHERE id = 1"))


class State:
    """Reads the number; safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Any = None
        self._seen: tuple[object, str] | None = None

    def token(self) -> str:
        """Return the present number as a word; a connection that broke is opened again once.

        Raises:
            mdr.errors.StoreError: index-unreadable.
        """
        from sqlalchemy.exc import SQLAlchemyError

        from mdr.store.engine import unreadable

        failures = (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error)
        with self._lock:
            try:
                return self._read()
            except failures:
                self._drop()
            try:
                return self._read()
            except failures as error:
                self._drop()
                raise unreadable(error) from error

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            self._drop()

    def _read(self) -> str:
        if self._connection is None:
            self._connection = self._engine.raw_connection()
            if self._engine.dialect.name != "sqlite":
                self._connection.driver_connection.autocommit = True
        ask = self._connection.driver_connection.execute
        if self._engine.dialect.name != "sqlite":
            return str(ask(QUERY).fetchone()[0])
        (version,) = ask("PRAGMA data_version").fetchone()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, str(ask(QUERY).fetchone()[0]))
        return self._seen[1]

    def _drop(self) -> None:
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            with suppress(Exception):  # it may be broken already; that was told where it broke
                connection.invalidate()
                connection.close()
