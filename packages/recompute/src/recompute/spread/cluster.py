"""Workers of a Dask cluster: the same work, in the same order, on other machines.

Workers must run the same Python and the same recompute as the caller, bytes and all, since the same answer
is promised; that is asked before any work, and again by every worker before its first piece. Whoever may
talk to a Dask scheduler may run code on its workers: the cluster is the user's own.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from recompute import __version__
from recompute.errors import ConfigError
from recompute.spread.ahead import ahead

Request = TypeVar("Request")
Answer = TypeVar("Answer")

CONNECT_SECONDS: Final = 10
"""How long a scheduler may take to answer, and to have its first worker."""
LOOK_SECONDS: Final = 2
"""Between two looks at whether there are workers, while an answer is waited for."""
PATIENCE: Final = 3
"""Looks without a worker until nobody is expected any more: a worker that died may be started again."""
AHEAD: Final = 2
"""Requests out for each thread of a worker."""
ADDRESS: Final = re.compile(
    r"(?:(?:tcp|tls|ws|wss)://)?(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})"
)
"""Addresses of schedulers; Dask itself tries others for ever."""
EXTRA: Final = 'pip install "megatron-recompute[cluster]"'


@functools.lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return what has to be equal for answers to be equal: Python, version, and a hash of the source."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return f"Python {python}, recompute {__version__}, source {digest.hexdigest()[:12]}"


def guarded(expected: str, function: Callable[[Request], Answer], request: Request) -> Answer:
    """Work on a request, if this worker is like the caller.

    Raises:
        ConfigError: ``cluster-mismatch``: it joined later and is not.
    """
    if fingerprint() != expected:
        raise _mismatch(expected, {"a worker that joined later": fingerprint()})
    return function(request)


class Cluster:
    """Workers of a Dask cluster; a context manager that takes its work back at the end.

    Args:
        address: Of the scheduler, ``tcp://host:8786``.
        connect_seconds: How long it may take to answer.
        say: Told what a user should know, one line each.

    Raises:
        ConfigError: ``cluster-extra``, ``cluster-unreachable``, ``cluster-empty`` or ``cluster-mismatch``.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.address = address
        self._say, self._is_lost = say, False
        self._client = _connected(address, connect_seconds)
        try:
            self.threads = _checked(self._client, address, connect_seconds)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ordered(
        self,
        function: Callable[[Request], Answer],
        requests: Iterable[Request],
        *,
        what: str,
        of: int,
    ) -> Iterator[tuple[Request, Answer]]:
        """Yield every request with its answer, in the order of the requests."""
        if self._is_lost:
            yield from ((request, function(request)) for request in requests)
            return
        expected, out = fingerprint(), list[Any]()

        def submit(request: Request) -> Any:
            if self._is_lost:
                raise WorkersGoneError
            out.append(self._client.submit(guarded, expected, function, request, pure=False))
            return _Watched(self._client, out[-1], lambda: self._is_lost)

        try:
            yield from ahead(
                submit,
                iter(requests),
                AHEAD * self.threads,
                lambda request, error: self._redone(function, request, error),
                _what_is_lost(),
            )
        finally:
            self._take_back(out)

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close(timeout=2)

    def _take_back(self, out: list[Any]) -> None:
        left = [future for future in out if not future.done()]
        if left and not self._is_lost:
            self._client.cancel(left, force=True)

    def _redone(
        self, function: Callable[[Request], Answer], request: Request, error: BaseException
    ) -> Answer:
        if not self._is_lost:
            gone = isinstance(error, WorkersGoneError)
            self._is_lost = gone or self._client.status != "running"
            rest = " and the rest" if self._is_lost else ""
            lost = "the cluster is gone" if self._is_lost else "workers of the cluster died"
            self._say(f"{lost} ({type(error).__name__}): their work{rest} is done in this process")
        return function(request)


class _Watched:
    """An answer that is given up when no worker is left to work on it."""

    def __init__(self, client: Any, future: Any, is_given_up: Callable[[], bool]) -> None:
        self._client, self._future, self._is_given_up = client, future, is_given_up

    def result(self) -> Any:
        """Wait for the answer.

        Raises:
            WorkersGoneError: All workers have been gone for a while.
        """
        empty = 0
        while empty < PATIENCE and not self._is_given_up():
            try:
                return self._future.result(timeout=LOOK_SECONDS)
            except TimeoutError:  # of the wait, or the work's own
                if self._future.status == "error":
                    return self._future.result()
            empty = 0 if self._client.nthreads() else empty + 1
        raise WorkersGoneError


class WorkersGoneError(Exception):
    """No worker is left. Never leaves this module."""


def _connected(address: str, seconds: float) -> Any:
    match = ADDRESS.fullmatch(address.strip())
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise _unreachable(address, "that is no address of a scheduler")
    try:
        import distributed
    except ImportError as error:
        raise ConfigError(
            "cluster-extra",
            f"--cluster needs the package distributed, which is not installed ({error})",
            hint=EXTRA,
        ) from error
    _quiet()
    connect: Any = distributed.Client
    try:
        return connect(address, timeout=seconds, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise _unreachable(address, reason) from error


def _unreachable(address: str, reason: str) -> ConfigError:
    return ConfigError(
        "cluster-unreachable",
        f"no Dask scheduler answers at {address[:200]!r}: {reason}",
        hint="start one with `dask scheduler` and workers with `dask worker ADDRESS --nthreads 1`, "
        "then give --cluster tcp://HOST:8786",
        data={"address": address[:200]},
    )


def _checked(client: Any, address: str, seconds: float) -> int:
    """Return the threads of all workers, when there are any and all of them are like this process."""
    try:
        client.wait_for_workers(1, timeout=seconds)
    except TimeoutError as error:
        raise ConfigError(
            "cluster-empty",
            f"the scheduler at {address} has no worker",
            hint="start some with `dask worker ADDRESS --nthreads 1`",
            data={"address": address},
        ) from error
    expected = fingerprint()
    found: dict[str, object] = {}
    try:
        found["the scheduler"] = client.run_on_scheduler(fingerprint)
        found |= client.run(fingerprint, on_error="return")
    except Exception as error:  # noqa: BLE001 - whatever they make of a function they cannot read
        found["a worker" if found else "the scheduler"] = error
    other = {name: _shown(seen) for name, seen in found.items() if seen != expected}
    if other:
        raise _mismatch(expected, other)
    threads: int = sum(client.nthreads().values())
    return max(1, threads)


def _shown(seen: object) -> str:
    return f"{type(seen).__name__}: {seen}"[:200] if isinstance(seen, BaseException) else str(seen)


def _mismatch(expected: str, other: Mapping[str, str]) -> ConfigError:
    name, seen = next(iter(sorted(other.items())))
    return ConfigError(
        "cluster-mismatch",
        f"{len(other)} processes of the cluster differ from this one: {name} has {seen}; "
        f"here it is {expected}",
        hint="install the same Python and the same megatron-recompute[cluster] on the scheduler and on "
        "every worker, and start them again",
        data={"expected": expected, "workers": dict(sorted(other.items())[:20])},
    )


def _what_is_lost() -> tuple[type[BaseException], ...]:
    """Return what Dask raises when work is lost through no fault of the work."""
    from concurrent.futures import CancelledError

    from distributed import CancelledError as Cancelled
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker

    return (KilledWorker, Cancelled, CancelledError, CommClosedError, WorkersGoneError)


def _quiet() -> None:
    """Keep Dask's own talk about lost connections off standard error: this module says what matters."""
    import logging

    for name in ("distributed", "distributed.client", "distributed.core", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
