"""Which state the stores are in now, asked once for many requests.

An answer is as new as the question: a request never uses a state that was read before it arrived. Where
reading the state takes a microsecond (SQLite) it is read for each request; where it crosses a socket
(PostgreSQL), requests that arrive while one reading is under way share the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


class Watch:
    """Reads the state's word."""

    def __init__(self, read: Callable[[], str], executor: Executor | None) -> None:
        """Take the reader, and where it runs; ``None``: here, because it is quick."""
        self._read = read
        self._executor = executor
        self._running: asyncio.Task[str] | None = None
        self._next: asyncio.Task[str] | None = None

    async def token(self) -> str:
        """Return the word of a state that is not older than this call.

        Raises:
            mdr.errors.StoreError: index-unreadable.
        """
        if self._executor is None:
            return self._read()
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[str] | None) -> str:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._read)
