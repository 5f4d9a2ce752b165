"""Around every answer: who asks, how often, how much; and what every answer carries.

Bare ASGI, because every request passes through it: one wrapper of ``receive`` and one of ``send``.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from mdr.answers.faults import status_of
from mdr.api.problems import MEDIA_TYPE, body, headers_of, problem
from mdr.errors import BadReference, MdrError, UsageError, WorldError
from mdr.serving.siblings import TOOLS
from mdr.web.pages import POLICY

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.answers.answer import Application, Message, Receive, Scope, Send
    from mdr.serving.clients import Clients
    from mdr.serving.logs import JsonLog
    from mdr.serving.metrics import Metrics
    from mdr.serving.names import Names
    from mdr.serving.options import Options

    Methods = Callable[[str], tuple[str, ...]]

REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{8,64}")
METHODS: Final = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})
READ_ONLY: Final = ("GET", "HEAD", "OPTIONS")
PAGE_POLICY: Final = POLICY.encode()
SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"strict-origin-when-cross-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
SHARED: Final = (
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"ETag, Content-Range, Accept-Ranges, Retry-After, X-Request-Id, Link, Deprecation, Sunset",
    ),
)
"""For programs of any origin: nothing here depends on who asks."""
PREFLIGHT: Final = (
    (b"access-control-allow-headers", b"Content-Type, If-None-Match, If-Range, Range"),
    (b"access-control-max-age", b"86400"),
)
"""``Authorization`` is not among them: no page of another origin may write."""
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
PROGRAMS: Final = (
    "/api/", "/badge/", "/mcp", "/openapi.json", "/healthz", "/readyz", "/metrics",
)  # fmt: skip
"""Where whoever asks is a program, and an error a document; everywhere else it is a page."""
SHARED_PREFIXES: Final = ("/api/", "/openapi.json", "/badge/")
ASKED: Final = "/api/v1/verify"
"""The one question that is a POST."""
OWNERS: Final = "/api/v1/events"
"""The one read that needs a token."""


class Envelope:
    """Wraps the whole service."""

    def __init__(
        self,
        app: Application,
        *,
        options: Options,
        names: Names,
        methods: Methods,
        clients: Clients,
        log: JsonLog,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._options = options
        self._names = names
        self._methods = methods
        self._clients = clients
        self._log = log
        self._metrics = metrics
        self._https = (options.public_url or "").startswith("https://")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope}  # the server goes by its own: there a HEAD must stay one
        self._clients.identify(scope)
        exchange = _Exchange(scope, send, self._methods, https=self._https)
        try:
            await self._answer(scope, _Body(receive, scope, self._options), exchange)
        except MdrError as error:  # what was refused before a route was reached, or while reading
            await exchange.fail(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours is a 500, and the process goes on
            self._log.crash(error, id=exchange.id)
            await exchange.fail(MdrError("internal", "the registry failed", hint="try again later"))
        finally:
            self._note(scope, exchange)

    async def _answer(self, scope: Scope, read: _Body, exchange: _Exchange) -> None:
        self._admit(scope)
        if scope["method"] == "OPTIONS":
            await exchange.options()
            return
        read.check_length()
        if scope["method"] == "HEAD":
            scope["method"], scope["mdr.head"] = "GET", True
        await self._app(scope, read, exchange.send)

    def _admit(self, scope: Scope) -> None:
        """Refuse what is meant for another server, too long, too often, or not HTTP as we speak it.

        Raises:
            mdr.errors.MdrError: host-not-served, origin-not-allowed, uri-too-long, rate-limited,
                method-not-allowed.
        """
        self._names.check(scope)
        if scope["path"].startswith(TOOLS):
            self._names.check_origin(scope)
        if (
            len(scope.get("raw_path") or b"") + len(scope["query_string"])
            > self._options.max_target_bytes
        ):
            raise UsageError("uri-too-long", "the address is too long", hint="ask for less at once")
        if scope["method"] not in METHODS:
            raise UsageError(
                "method-not-allowed",
                "this method is not known here",
                hint="Allow names those that are",
            )
        wait = self._clients.wait(scope)
        if wait is not None:
            self._metrics.limited()
            seconds = max(1, int(wait + 0.999))
            raise WorldError(
                "rate-limited",
                "too many requests from your network",
                hint=f"wait {seconds} s; answers may be kept and asked about with If-None-Match",
                data={"retry_after": seconds},
            )

    def _note(self, scope: Scope, exchange: _Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        method = "HEAD" if scope.get("mdr.head") else scope["method"]
        if method not in METHODS:
            method = "other"
        route = scope.get("mdr.route") or template_of(scope)
        self._metrics.answered(method, route, exchange.status, seconds)
        if self._log.requests or exchange.status >= 500:
            self._log.request(
                status=exchange.status,
                error=exchange.error or scope.get("mdr.error"),
                id=exchange.id,
                method=method,
                route=route,
                bytes=exchange.bytes,
                seconds=round(seconds, 6),
            )


class _Exchange:
    """One answer on its way out."""

    __slots__ = ("_extra", "_head", "_methods", "_scope", "_send", "bytes", "error", "id", "started", "status")  # fmt: skip

    def __init__(self, scope: Scope, send: Send, methods: Methods, *, https: bool) -> None:
        self.started = time.perf_counter()
        self.status = 499  # nothing was sent: the reader went away
        self.bytes = 0
        self.error: MdrError | None = None
        self.id = _request_id(scope)
        self._scope = scope
        self._send = send
        self._methods = methods
        self._head = scope["method"] == "HEAD"
        extra = [*SECURITY, (b"x-request-id", self.id.encode("ascii"))]
        if is_shared(scope["method"], scope["path"]):
            extra += SHARED
        if https or scope.get("scheme") == "https":
            extra.append(HSTS)
        self._extra = extra

    async def send(self, message: Message) -> None:
        """Pass a message on, with what every answer carries."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._headers(message["headers"])}
        elif message["type"] == "http.response.body":
            self.bytes += 0 if self._head else len(message.get("body", b""))
            if self._head and message.get("body"):
                message = {**message, "body": b""}
        await self._send(message)

    async def options(self) -> None:
        """Answer OPTIONS: what may be asked of this path, and what of it by pages of any origin.

        Raises:
            mdr.errors.BadReference: not-found.
        """
        path = self._scope["path"]
        allowed = tuple(sorted(METHODS)) if path == "*" else self._methods(path)
        if not allowed:
            raise BadReference("not-found", "there is no such page", hint="see /openapi.json")
        headers = [(b"allow", ", ".join(allowed).encode()), (b"content-length", b"0")]
        shared = [each for each in allowed if is_shared(each, path)]
        if shared:
            headers += [
                *SHARED,
                *PREFLIGHT,
                (b"access-control-allow-methods", ", ".join(shared).encode()),
            ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body"})

    async def fail(self, error: MdrError) -> None:
        """Answer with a problem, or a page for people, unless an answer has begun already."""
        self.error = error
        if self.status != 499:
            return
        if not self._scope["path"].startswith(PROGRAMS):
            await self._page(error)
            return
        data = body(problem(error))
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(data)).encode()),
        ]
        headers += [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
        if error.code == "body-too-large":
            headers.append((b"connection", b"close"))
        await self.send(
            {"type": "http.response.start", "status": status_of(error), "headers": headers}
        )
        await self.send({"type": "http.response.body", "body": data})

    async def _page(self, error: MdrError) -> None:
        from mdr.answers.answer import Ready
        from mdr.web.problems import problem_page

        await Ready(problem_page(error, "")).send(self._scope, self.send)

    def _headers(self, own: Any) -> list[tuple[bytes, bytes]]:
        headers = list(own)
        if (
            self.status == 405
        ):  # a router tells the methods of one route, and a path may have several
            allowed = self._methods(self._scope["path"]) or READ_ONLY
            headers = [pair for pair in headers if pair[0] != b"allow"]
            headers.append((b"allow", ", ".join(allowed).encode()))
        names = {name for name, _ in headers}
        headers += [pair for pair in self._extra if pair[0] not in names]
        if b"content-security-policy" not in names:
            headers.append((b"content-security-policy", PAGE_POLICY))
        return headers


class _Body:
    """Reads a request's body, so much and so long and no more."""

    __slots__ = ("_ends", "_limit", "_read", "_receive", "_scope")

    def __init__(self, receive: Receive, scope: Scope, options: Options) -> None:
        self._receive = receive
        self._scope = scope
        self._limit = options.max_body_bytes
        self._ends = asyncio.get_running_loop().time() + options.request_seconds
        self._read = 0

    def check_length(self) -> None:
        """Refuse a length that is too large before anything is read.

        Raises:
            mdr.errors.UsageError: body-too-large.
        """
        for name, value in self._scope["headers"]:
            if name == b"content-length" and int(value) > self._limit:
                raise self._too_large()

    async def __call__(self) -> Message:
        """Return the next message.

        Raises:
            mdr.errors.UsageError: body-too-large, body-too-slow.
        """
        if self._scope["method"] == "GET":
            return await self._receive()  # there is no body to wait for, only a reader who leaves
        try:
            async with asyncio.timeout_at(self._ends):
                message = await self._receive()
        except TimeoutError:
            raise UsageError(
                "body-too-slow", "the request did not arrive in time", hint="send it at once"
            ) from None
        self._read += len(message.get("body", b""))
        if self._read > self._limit:
            raise self._too_large()
        return message

    def _too_large(self) -> UsageError:
        return UsageError(
            "body-too-large",
            f"a request may have {self._limit} bytes",
            hint="send several",
            data={"limit": self._limit},
        )


def is_shared(method: str, path: str) -> bool:
    """Say whether pages of any origin may read the answer: reads that need no account, and nothing else."""
    if not path.startswith(SHARED_PREFIXES) or path == OWNERS:
        return False
    return method in READ_ONLY[:2] or (method == "POST" and path == ASKED)


def template_of(scope: Scope) -> str:
    """Return the template of the route that answered, such as ``/a/{id}``; ``other`` without one."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    if not isinstance(path, str):
        return "other"
    nested = scope["path"].startswith("/api/") and not path.startswith("/api/")
    return f"/api/v1{path}" if nested else path


def _request_id(scope: Scope) -> str:
    """Take the id that a proxy gave, or make one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return secrets.token_hex(8)
