"""What every way of answering shares: the stores, the documents, the threads, the answers kept.

A sibling (API, pages) makes an answer in a plain function that may block; :meth:`Service.answered` runs
it in a thread, once for all who ask at the same time, and keeps the result under the state of the stores.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mdr.answers.answer import Answer, Ready, asked_encoding
from mdr.answers.kept import MIB, Kept
from mdr.answers.watch import Watch
from mdr.errors import WorldError
from mdr.store.together import together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from mdr.answers.answer import Application, Receive, Scope, Send
    from mdr.registry.reading import Reading
    from mdr.registry.stores import Stores
    from mdr.settings import Settings

    Value = TypeVar("Value")

READS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one process does at once, and for how long."""

    threads: int = 8
    waiting: int = 256
    """Requests that may wait for a thread; more are told to come back."""
    seconds: float = 30.0
    """Longest that one request may take."""
    kept_bytes: int = 256 * MIB
    """Room for answers that are kept."""


class Service:
    """One process of the service."""

    def __init__(
        self,
        *,
        settings: Settings,
        stores: Stores,
        base_url: str,
        bounds: Bounds | None = None,
    ) -> None:
        """Take open stores.

        Args:
            settings: Of the process.
            stores: Open, and closed by whoever opened them.
            base_url: Where readers reach the service, without a slash at the end.
            bounds: Of this process.
        """
        from mdr.registry.reading import Reading
        from mdr.store.state import state_token

        self.settings = settings
        self.stores = stores
        self.base_url = base_url
        self.bounds = bounds or Bounds()
        self.reading: Reading = Reading(stores, settings)
        self.kept = Kept(self.bounds.kept_bytes)
        self._pool = ThreadPoolExecutor(self.bounds.threads, thread_name_prefix="mdr-read")
        quick = stores.index.engine.dialect.name == "sqlite"
        self._watcher = None if quick else ThreadPoolExecutor(1, thread_name_prefix="mdr-state")
        self.watch = Watch(lambda: state_token(stores), self._watcher)
        self._making: dict[tuple[bytes, str], asyncio.Task[Ready]] = {}
        self._busy = 0

    @property
    def busy(self) -> int:
        """Calls that run in threads or wait for one."""
        return self._busy

    async def answered(self, scope: Scope, make: Callable[[], Answer]) -> Ready:
        """Return the answer to a GET or HEAD, made now or kept from before.

        Args:
            scope: ASGI scope; path and query name the answer, so it may depend on nothing else.
            make: Makes it, in a thread.

        Raises:
            mdr.errors.MdrError: what ``make`` raises; overloaded, timeout.
        """
        key = key_of(scope)
        token = await self.watch.token()
        wanted = asked_encoding(scope)
        ready = self.kept.get(key, token, time.monotonic())
        if ready is None:
            ready = await self._made(key, token, make, wanted)
        elif not ready.has(wanted):
            await self.in_thread(lambda: ready.encode(wanted))
            self.kept.grown(key)
        ready.route = scope.get("route")
        return ready

    async def in_thread(self, call: Callable[[], Value]) -> Value:
        """Run something that blocks, within the bounds.

        Raises:
            mdr.errors.WorldError: overloaded, timeout.
        """
        if self._busy >= self.bounds.threads + self.bounds.waiting:
            raise WorldError(
                "overloaded", "too many requests at once", hint="try again in a second"
            )
        self._busy += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        future.add_done_callback(self._one_less)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self.bounds.seconds)
        except TimeoutError:
            raise WorldError(
                "timeout",
                f"this took longer than {self.bounds.seconds:g} seconds",
                hint="try again later, or ask for less",
            ) from None

    def close(self) -> None:
        """End the threads; what runs is finished, what waits is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._watcher is not None:
            self._watcher.shutdown(wait=True)

    def _one_less(self, future: asyncio.Future[Value]) -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()  # seen; whoever waited has it, or gave up

    async def _made(self, key: bytes, token: str, make: Callable[[], Answer], wanted: str) -> Ready:
        """Make an answer once for everybody who asks for it meanwhile."""
        name = (key, token)
        task = self._making.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(key, token, make, wanted))
            self._making[name] = task
            task.add_done_callback(lambda done: self._finished(name, done))
        return await asyncio.shield(task)

    async def _make(self, key: bytes, token: str, make: Callable[[], Answer], wanted: str) -> Ready:
        def work() -> Ready:
            with together(self.stores.index.engine):
                ready = Ready(make())
            ready.encode(wanted)
            return ready

        ready = await self.in_thread(work)
        self.kept.put(key, token, time.monotonic(), ready)
        return ready

    def _finished(self, name: tuple[bytes, str], task: asyncio.Task[Ready]) -> None:
        self._making.pop(name, None)
        if not task.cancelled():
            task.exception()


class FastLane:
    """Answers what is kept before any routing: a dictionary look-up and two messages."""

    def __init__(self, app: Application, service: Service) -> None:
        self._app = app
        self._service = service

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] in READS:
            return self._read(scope, receive, send)
        return self._app(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        try:
            token = await service.watch.token()
        except WorldError:  # the route says so in its own form
            return await self._app(scope, receive, send)
        ready = service.kept.get(key_of(scope), token, time.monotonic())
        if ready is None:
            return await self._app(scope, receive, send)
        wanted = asked_encoding(scope)
        if not ready.has(wanted):
            return await self._app(scope, receive, send)
        scope["route"] = ready.route
        return await ready.send(scope, send, wanted)


def key_of(scope: Scope) -> bytes:
    """Return path and query as they were sent, which is what a kept answer is known by."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return raw.partition(b"?")[0] + b"?" + query
