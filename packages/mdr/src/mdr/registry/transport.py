"""Requests to a registry that is not trusted: bounded in size, time, redirects and tries.

Every answer must be whole within a deadline that counts from the first byte sent, however slowly the
other side drips; a watcher shuts the socket then. Bodies are asked for as they are and refused when they
come encoded, so that no small answer can grow. A redirect stays with its scheme, or goes from http to
https; nothing but http and https is ever followed, and a write is never redirected.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from mdr.errors import BadReference, IntegrityError, MdrError, Refusal, UsageError, WorldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import urllib3

MIB: Final = 1 << 20
MAX_REDIRECTS: Final = 5
RETRIED: Final = frozenset({429, 502, 503, 504})
LONGEST_PAUSE: Final = 10.0
"""Seconds that a ``Retry-After`` may ask for; with more we give up at once and say so."""
SHOWN: Final = 300
"""Characters of the other side's words that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long, how often."""

    connect_seconds: float = 10.0
    silence_seconds: float = 15.0
    """Between two reads."""
    whole_seconds: float = 60.0
    """From sending a request to the last byte of its answer."""
    tries: int = 3
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Read the body as one JSON object.

        Raises:
            mdr.errors.IntegrityError: registry-answer.
        """
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            raise odd("it is not JSON") from None
        if not isinstance(found, dict):
            raise odd("it is not a JSON object")
        return found


class Transport:
    """One registry, asked by several threads at once."""

    def __init__(
        self, address: str, *, token: str | None = None, patience: Patience | None = None
    ) -> None:
        """Take the registry's address.

        Raises:
            mdr.errors.UsageError: registry-unsupported.
        """
        self._base = _checked(address)
        self._token = token
        self._patience = patience or Patience()
        self._manager: urllib3.PoolManager | None = None
        self._opening = threading.Lock()

    def get(
        self, path: str, query: Mapping[str, str] | None = None, *, limit: int = 16 * MIB
    ) -> Reply:
        """Read something.

        Args:
            path: Below the registry's address, such as ``/api/v1/resolve``.
            query: Parameters.
            limit: Bytes that the answer may have.

        Raises:
            mdr.errors.MdrError: what the registry's problem says; registry-unreachable,
                registry-answer.
        """
        from urllib.parse import urlencode

        tail = f"?{urlencode(query)}" if query else ""
        return self._expect(self._tried("GET", f"{self._base}{path}{tail}", None, limit))

    def post(self, path: str, document: Mapping[str, Any], *, limit: int = 16 * MIB) -> Reply:
        """Ask something that has a body but changes nothing.

        Raises:
            mdr.errors.MdrError: as :meth:`get`.
        """
        body = json.dumps(document).encode()
        return self._expect(self._tried("POST", self._base + path, body, limit))

    def write(self, method: str, path: str, document: Mapping[str, Any]) -> Reply:
        """Change something, once: what may have happened is not tried again.

        Raises:
            mdr.errors.Refusal: token-missing.
            mdr.errors.UsageError: token-in-clear.
            mdr.errors.MdrError: as :meth:`get`.
        """
        parts = urlsplit(self._base)
        if self._token is None:
            raise Refusal(
                "token-missing",
                "a registry is changed with a token only",
                hint="set MDR_TOKEN; mdr token issue NAME --scope SCOPE on the registry's machine makes one",
            )
        if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
            raise UsageError(
                "token-in-clear",
                "a token is not sent without encryption",
                hint="name the registry with https://",
            )
        body = json.dumps(document).encode()
        return self._expect(self._once(method, self._base + path, body, MIB, token=self._token))

    def _tried(self, method: str, url: str, body: bytes | None, limit: int) -> Reply:
        pause = 0.2
        for left in reversed(range(self._patience.tries)):
            try:
                reply = self._followed(method, url, body, limit)
            except WorldError:
                if not left:
                    raise
            else:
                asked = _retry_after(reply) if reply.status in RETRIED else None
                if asked is None or not left or asked > LONGEST_PAUSE:
                    return reply
                pause = max(pause, asked)
            self._patience.sleep(pause)
            pause *= 2
        raise AssertionError

    def _followed(self, method: str, url: str, body: bytes | None, limit: int) -> Reply:
        for _ in range(MAX_REDIRECTS + 1):
            reply = self._once(method, url, body, limit)
            if reply.status not in {301, 302, 303, 307, 308}:
                return reply
            if method != "GET":
                raise odd("it redirects a question that has a body")
            url = _target(url, reply.headers.get("location", ""))
        raise odd("it redirects too often")

    def _once(
        self, method: str, url: str, body: bytes | None, limit: int, *, token: str | None = None
    ) -> Reply:
        import urllib3

        headers = {"accept-encoding": "identity", "user-agent": _agent()}
        if body is not None:
            headers["content-type"] = "application/json"
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        with _deadline(self._patience.whole_seconds) as late:
            try:
                answer = self._pool().request(
                    method, url, body=body, headers=headers, redirect=False, preload_content=False
                )
                try:
                    reply = self._read(answer, limit)
                finally:
                    answer.close()
                    answer.release_conn()
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise self._unreachable(late, _reason(error)) from error
            if late.is_set():  # the end that we made looks like the other side's
                raise self._unreachable(late, "")
            return reply

    def _unreachable(self, late: threading.Event, reason: str) -> WorldError:
        what = "it took too long" if late.is_set() else reason
        return WorldError(
            "registry-unreachable",
            f"the registry {self._base} cannot be reached: {what}",
            hint="check the address and the network; what is cached installs with --offline",
            data={"registry": self._base},
        )

    def _read(self, answer: urllib3.BaseHTTPResponse, limit: int) -> Reply:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise odd("it is encoded, and was asked for as it is")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise odd(f"it has more than {limit:,} bytes")
        pieces, size = [], 0
        while piece := answer.read(64 << 10, decode_content=False):
            size += len(piece)
            if size > limit:
                raise odd(f"it has more than {limit:,} bytes")
            pieces.append(piece)
        return Reply(status=answer.status, body=b"".join(pieces), headers=headers)

    def _expect(self, reply: Reply) -> Reply:
        if 200 <= reply.status < 300:
            return reply
        raise _problem(reply, self._base)

    def _pool(self) -> urllib3.PoolManager:
        with self._opening:
            if self._manager is None:
                import urllib3

                patience = self._patience
                timeout = urllib3.Timeout(
                    connect=patience.connect_seconds, read=patience.silence_seconds
                )
                self._manager = urllib3.PoolManager(maxsize=8, retries=False, timeout=timeout)
                self._manager.pool_classes_by_scheme = _watched_pools()
            return self._manager


_ACTIVE = threading.local()


@contextmanager
def _deadline(seconds: float) -> Iterator[threading.Event]:
    """Shut the sockets that this thread uses inside the block once the time is over."""
    late, used = threading.Event(), list[socket.socket]()

    def shut() -> None:
        late.set()
        for sock in list(used):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    _ACTIVE.used, _ACTIVE.late = used, late
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        _ACTIVE.used = None


def _use(sock: socket.socket | None) -> None:
    """Note a socket: a connection forgets its own once an answer ends with it."""
    used = getattr(_ACTIVE, "used", None)
    if used is None or sock is None:
        return
    used.append(sock)
    if _ACTIVE.late.is_set():  # the time was over while it was opened
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _watched_pools() -> dict[str, Any]:
    """Return urllib3's pools with connections that the deadline can find."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    def watched(kind: type) -> type:
        def connect(self: Any) -> None:
            kind.connect(self)  # type: ignore[attr-defined]
            _use(self.sock)

        def request(self: Any, *arguments: Any, **named: Any) -> None:
            _use(self.sock)  # one that is kept from an earlier request
            kind.request(self, *arguments, **named)  # type: ignore[attr-defined]

        members = {"connect": connect, "request": request}
        return type(f"Watched{kind.__name__}", (kind,), members)

    return {
        "http": type("HttpPool", (HTTPConnectionPool,), {"ConnectionCls": watched(HTTPConnection)}),
        "https": type("HttpsPool", (HTTPSConnectionPool,), {"ConnectionCls": watched(HTTPSConnection)}),
    }  # fmt: skip


def odd(what: str) -> IntegrityError:
    """Describe an answer that cannot be what an honest registry says."""
    return IntegrityError(
        "registry-answer",
        f"the registry's answer cannot be used: {what}",
        hint="the registry is wrong or hostile; nothing was written",
    )


def _checked(address: str) -> str:
    parts = urlsplit(address)
    plain = address.isascii() and address.isprintable() and " " not in address
    named = parts.hostname is not None and parts.username is None
    if (
        parts.scheme not in {"http", "https"}
        or not plain
        or not named
        or parts.query
        or parts.fragment
    ):
        raise UsageError(
            "registry-unsupported",
            f"cannot use the registry {address[:SHOWN]!r}",
            hint="name https://HOST, http://HOST or file:///DIR, without a user, a query or a fragment",
        )
    return address.rstrip("/")


def _target(url: str, location: str) -> str:
    target = urljoin(url, location)
    old, new = urlsplit(url), urlsplit(target)
    allowed = {"http": {"http", "https"}, "https": {"https"}}[old.scheme]
    if not location or new.scheme not in allowed or not new.hostname or new.username is not None:
        raise odd(f"it redirects to {clean(location) or 'nowhere'}")
    return target


def _problem(reply: Reply, base: str) -> MdrError:
    """Turn a problem into the error that it describes; its words are shown without control characters."""
    try:
        found = reply.document()
    except IntegrityError:
        found = {}
    words = clean(found.get("detail")) or f"HTTP status {reply.status}"
    code = found.get("code")
    named = code if isinstance(code, str) and code in KNOWN else None
    hint = clean(found.get("hint"))
    match reply.status:
        case 400 | 404 | 409 | 410:
            names = found.get("candidates")
            listed = [clean(each) for each in names[:20]] if isinstance(names, list) else []
            return BadReference(
                named or "not-found",
                f"{base}: {words}",
                hint=hint,
                data={"candidates": listed} if listed else {},
            )
        case 451:
            data = {
                key: clean(found.get(key)) or None for key in ("sha256", "reason", "advisory", "at")
            }
            return Refusal("tombstone", words, hint=hint or "choose another version", data=data)
        case 401 | 403:
            return Refusal(named or "registry-refused", f"{base}: {words}", hint=hint)
        case status if 400 <= status < 500 and status != 429:
            return UsageError(named or "registry-refused", f"{base}: {words}", hint=hint)
        case _:
            return WorldError(
                "registry-unreachable", f"the registry {base} cannot answer now: {words}",
                hint="try again later", data={"status": reply.status},
            )  # fmt: skip


KNOWN: Final = frozenset(
    {
        "ambiguous-reference", "bad-cursor", "bad-hash", "bad-reason", "bad-reference", "digest-too-short",
        "gone", "invalid", "not-found", "token-expired", "token-revoked", "token-scope", "token-unknown",
        "unknown-ruleset",
    }
)  # fmt: skip
"""Codes of problems that mean here what they mean there."""


def clean(value: object) -> str:
    """Return the other side's words, short and without anything that could steer a terminal."""
    text = value if isinstance(value, str) else ""
    return "".join(char if char.isprintable() else " " for char in text[:SHOWN]).strip()


def _retry_after(reply: Reply) -> float:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 8 else 0.0


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None) or error
    return type(inner).__name__


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _agent() -> str:
    from mdr import __version__

    return f"mdr/{__version__}"
