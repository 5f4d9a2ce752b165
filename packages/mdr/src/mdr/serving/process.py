"""The processes of the service: a socket, one server on it or several, an end in order.

uvicorn, by measurement (docs/adr/0013): its event loop and parser answer several times what the pages
and documents can be made for, it takes a socket that is bound before anything else starts, and its
protocol class can be given the limits of :mod:`mdr.serving.guarded`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mdr.errors import MdrError, UsageError, WorldError
from mdr.serving.deaths import WINDOW, Deaths
from mdr.serving.logs import JsonLog, adopt_library_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from mdr.serving.options import Options
    from mdr.settings import Settings

BACKLOG: Final = 2_048
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """Bind the address.

    Raises:
        mdr.errors.UsageError: bad-address.
        mdr.errors.WorldError: port-taken, cannot-listen.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            "bad-address", f"{host!r} is no address of this machine", hint="such as 127.0.0.1 or ::"
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _not_bound(host, port, error) from error
    sock.set_inheritable(True)
    return sock


def _not_bound(host: str, port: int, error: OSError) -> WorldError:
    if error.errno == errno.EADDRINUSE:
        return WorldError(
            "port-taken",
            f"port {port} of {host} is taken by another program",
            hint="name another with --port, or --port 0 for any that is free",
            data={"host": host, "port": port},
        )
    return WorldError(
        "cannot-listen",
        f"cannot listen on port {port} of {host}: {error.strerror}",
        hint="ports below 1024 need a privilege; --host must be an address of this machine",
        data={"host": host, "port": port},
    )


def address_of(sock: socket.socket) -> str:
    """Return ``http://HOST:PORT`` of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(settings: Settings, options: Options, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, and return when every running request has its answer.

    Args:
        settings: Where the data is.
        options: How.
        announce: Called with the address once requests are answered.

    Raises:
        mdr.errors.MdrError: port-taken, cannot-listen, bad-address, and what opening the stores raises.
    """
    sock = listen(options.host, options.port)
    address = address_of(sock)
    options = replace(options, bound=sock.getsockname()[0])
    _raise_file_limit()
    try:
        if options.workers == 1:
            _run(sock, settings, options, address, lambda: announce(address))
        else:
            _Several(sock, settings, options, address).run(lambda: announce(address))
    finally:
        sock.close()


def _run(
    sock: socket.socket,
    settings: Settings,
    options: Options,
    address: str,
    ready: Callable[[], None],
) -> None:
    """Serve in this process."""
    import uvicorn

    from mdr.serving.application import create_application
    from mdr.serving.guarded import guarded

    log = JsonLog(requests=options.log_requests)
    adopt_library_logs(log)
    app = create_application(settings, options, options.public_url or address, log)
    config = uvicorn.Config(
        app,
        http=guarded(options),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=options.idle_seconds,
        timeout_graceful_shutdown=options.grace_seconds,
        limit_concurrency=options.connections,
        backlog=BACKLOG,
    )

    class Server(uvicorn.Server):
        """Says when it is ready, and ends with 0 when it was told to end."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            with _signals(lambda number: self.handle_exit(number, None)):
                yield

    try:
        Server(config).run(sockets=[sock])
    except SystemExit:
        if app.failure is not None:
            raise app.failure from None
        raise


@contextlib.contextmanager
def _signals(handle: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda number, _: handle(number)) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Several:
    """Processes that share one socket; one that dies is replaced."""

    def __init__(
        self, sock: socket.socket, settings: Settings, options: Options, address: str
    ) -> None:
        self._arguments = (sock, settings, options, address)
        self._workers: dict[SpawnProcess, Connection] = {}
        self._count = options.workers
        self._log = JsonLog(requests=False)
        self._grace = options.grace_seconds
        self._ending = threading.Event()
        self._deaths = Deaths(options.workers)
        self._due: list[float] = []
        """Moments from which on a process that died may be replaced."""
        self._why: MdrError | None = None
        """What the last process that could not start said."""

    def run(self, announce: Callable[[], None]) -> None:
        """Serve until told to stop.

        Raises:
            mdr.errors.MdrError: what a worker that could not start says; workers-die.
        """
        import multiprocessing

        with tempfile.TemporaryDirectory(prefix="mdr-metrics-") as folder:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
            self._context = multiprocessing.get_context("spawn")
            with _signals(self._stop):
                try:
                    for _ in range(self._count):
                        self._begin()
                    if not self._ending.is_set():
                        announce()
                    self._watch()
                finally:
                    self._end()

    def _begin(self) -> None:
        """Start one worker and wait until it answers.

        Raises:
            mdr.errors.MdrError: what it says instead.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        worker = self._context.Process(target=_worker, args=(*self._arguments, theirs), daemon=True)
        worker.start()
        theirs.close()
        self._workers[worker] = ours
        try:
            said = ours.recv()
        except EOFError:
            said = WorldError("workers-die", "a server process ended before it could answer")
        if isinstance(said, MdrError) and not self._ending.is_set():
            raise said

    def _watch(self) -> None:
        """Replace workers that die, until the end.

        Raises:
            mdr.errors.MdrError: workers-die, or what the last one said that could not start.
        """
        from multiprocessing.connection import wait

        while not self._ending.is_set():
            wait([worker.sentinel for worker in self._workers], timeout=0.2)
            for worker in [each for each in self._workers if not each.is_alive()]:
                if self._ending.is_set():
                    return
                self._workers.pop(worker).close()
                self._count_death(worker)
            if self._due and self._due[0] <= time.monotonic():
                self._due.pop(0)
                self._replace()

    def _count_death(self, worker: SpawnProcess) -> None:
        moment = self._deaths.another()
        self._log.event(
            "error", "worker-died", exit=worker.exitcode, lately=len(self._deaths),
            again=moment is not None,
        )  # fmt: skip
        if moment is None:
            raise self._why or WorldError(
                "workers-die",
                f"{len(self._deaths)} server processes died within {WINDOW:g} seconds",
                hint="the lines above say why",
            )
        self._due = sorted([*self._due, moment])

    def _replace(self) -> None:
        """Start another; one that cannot start now ends, which is counted, and is tried again."""
        try:
            self._begin()
        except MdrError as error:
            self._why = error
        else:
            self._why = None

    def _stop(self, _number: int) -> None:
        self._ending.set()

    def _end(self) -> None:
        for worker in self._workers:
            if worker.is_alive():
                worker.terminate()
        for worker, pipe in self._workers.items():
            worker.join(self._grace + 10)
            if worker.is_alive():
                worker.kill()
                worker.join()
            pipe.close()


def _worker(
    sock: socket.socket, settings: Settings, options: Options, address: str, pipe: Connection
) -> None:
    """Serve in a process of its own; the parent reads one message: ready, or why not."""

    def ready() -> None:
        pipe.send("ready")

    try:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a terminal sends it to all; the parent tells us
        _run(sock, settings, options, address, ready)
    except MdrError as error:
        pipe.send(error)
        sys.exit(3)


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets us have."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
