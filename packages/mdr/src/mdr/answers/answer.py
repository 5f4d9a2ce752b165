"""What is sent: a body with its validator, in the encodings that readers ask for.

Sources: RFC 9110 (validators 8.8, content negotiation 12.5.3, conditional requests 13, ranges 14).
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from mdr.answers.conditions import Part, Unsatisfiable, matches, part_of
from mdr.digest import sha256

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

IDENTITY: Final = ""
GZIP: Final = "gzip"
ZSTD: Final = "zstd"
WORTH_ENCODING: Final = 600
"""Bytes; a smaller body fits one packet either way."""
REVALIDATED: Final = "public, no-cache"
"""Kept by caches, asked about each time: a 304 when nothing changed."""
IMMUTABLE: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to a GET; whoever makes it knows nothing of conditions, encodings or ranges."""

    body: bytes
    media_type: str
    status: int = 200
    etag: str | None = None
    """Strong validator without quotes; ``None``: made from the body."""
    cache_control: str = REVALIDATED
    headers: tuple[tuple[str, str], ...] = ()
    """More of them, lower case."""
    ranges: bool = False
    """Whether parts may be asked for; such a body is always sent as it is, never encoded."""
    fresh_seconds: float | None = None
    """How long it may be kept though it holds something that the stores' state does not cover, such
    as badge views; ``None``: as long as that state stays the same."""
    served: Callable[[Scope], None] | None = None
    """Called for every GET that is answered with it, 304 included; never for HEAD."""


class Ready:
    """An answer with its encodings made on first use. Safe to share: a second maker makes the same."""

    __slots__ = ("_bodies", "_starts", "_unchanged", "answer", "etag", "route", "size")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.etag = sha256(answer.body)[:32] if answer.etag is None else answer.etag
        self.size = len(answer.body)
        self.route: object = None
        """What the router matched, for whoever counts answers that never reach it."""
        self._bodies: dict[str, bytes] = {IDENTITY: answer.body}
        self._starts: dict[str, Message] = {IDENTITY: self._start(IDENTITY)}
        self._unchanged: dict[str, Message] = {}

    def encoding(self, wanted: str) -> str:
        """Return the encoding to use for a reader who would like ``wanted``."""
        fits = not self.answer.ranges and len(self.answer.body) >= WORTH_ENCODING
        return wanted if fits and self.answer.status == 200 else IDENTITY

    def has(self, wanted: str) -> bool:
        """Say whether it can be sent without work."""
        return self.encoding(wanted) in self._bodies

    def encode(self, wanted: str) -> None:
        """Make the body in an encoding; takes a millisecond per 50 KB, so not in the event loop."""
        encoding = self.encoding(wanted)
        if encoding not in self._bodies:
            body = _encode(self.answer.body, encoding)
            self._starts[encoding] = self._start(encoding, len(body))
            self._bodies[encoding] = body
            self.size += len(body)

    async def send(self, scope: Scope, send: Send, wanted: str | None = None) -> None:
        """Answer a GET or HEAD, as the request's conditions and range ask.

        Args:
            scope: ASGI scope of the request.
            send: ASGI ``send``.
            wanted: What :func:`asked_encoding` found, when the caller has it.
        """
        answer = self.answer
        head = scope["method"] == "HEAD" or bool(scope.get("mdr.head"))
        get = scope["method"] == "GET" and not head
        if get and answer.served is not None:
            answer.served(scope)
        asked = _conditions(scope) if answer.status == 200 and (get or head) else _Asked()
        encoding = self.encoding(asked_encoding(scope) if wanted is None else wanted)
        if encoding not in self._bodies:
            self.encode(encoding)
        if asked.if_none_match is not None and matches(asked.if_none_match, self.etag):
            await send(self._not_modified(encoding))
            await send({"type": "http.response.body"})
            return
        if answer.ranges and asked.range is not None and get:
            part = part_of(asked.range, asked.if_range, self.etag, len(answer.body))
            if part is not None:
                await self._send_part(part, send)
                return
        await send(self._starts[encoding])
        body = b"" if head else self._bodies[encoding]
        await send({"type": "http.response.body", "body": body})

    async def _send_part(self, part: Part | Unsatisfiable, send: Send) -> None:
        body, whole = b"", len(self.answer.body)
        headers = [each for each in self._common() if each[0] != b"content-length"]
        if isinstance(part, Unsatisfiable):
            status, span = 416, f"bytes */{whole}"
        else:
            status, span = 206, f"bytes {part.first}-{part.last}/{whole}"
            body = self.answer.body[part.first : part.last + 1]
            headers.append((b"content-type", self.answer.media_type.encode()))
        headers += [
            (b"content-range", span.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _not_modified(self, encoding: str) -> Message:
        if encoding not in self._unchanged:
            headers = self._common(encoding)
            self._unchanged[encoding] = {
                "type": "http.response.start",
                "status": 304,
                "headers": headers,
            }
        return self._unchanged[encoding]

    def _start(self, encoding: str, size: int | None = None) -> Message:
        headers = self._common(encoding)
        headers += [
            (b"content-type", self.answer.media_type.encode()),
            (b"content-length", str(len(self.answer.body) if size is None else size).encode()),
        ]
        if encoding:
            headers.append((b"content-encoding", encoding.encode()))
        return {
            "type": "http.response.start",
            "status": self.answer.status,
            "headers": headers,
        }

    def _common(self, encoding: str = IDENTITY) -> list[tuple[bytes, bytes]]:
        """Return what a whole answer, a part and a 304 have in common."""
        tail = f"-{encoding}" if encoding else ""
        headers = [
            (b"etag", f'"{self.etag}{tail}"'.encode()),
            (b"cache-control", self.answer.cache_control.encode()),
        ]
        if self.answer.ranges:
            headers.append((b"accept-ranges", b"bytes"))
        else:
            headers.append((b"vary", b"accept-encoding"))
        headers += [(name.encode(), value.encode()) for name, value in self.answer.headers]
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    if_none_match: str | None = None
    range: str | None = None
    if_range: str | None = None


def _conditions(scope: Scope) -> _Asked:
    none_match, span, if_range = None, None, None
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            none_match = value.decode("latin-1")
        elif name == b"range":
            span = value.decode("latin-1")
        elif name == b"if-range":
            if_range = value.decode("latin-1")
    return _Asked(if_none_match=none_match, range=span, if_range=if_range)


def asked_encoding(scope: Scope) -> str:
    """Return ``zstd``, ``gzip`` or ``""``, whichever the request likes best and we make."""
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            return chosen_encoding(value.decode("latin-1"))
    return IDENTITY


def chosen_encoding(accepted: str) -> str:
    """Choose from the value of ``Accept-Encoding``; zstd before gzip when both are liked alike."""
    best, best_weight = IDENTITY, 0.0
    for item in accepted.split(",")[:32]:
        name, _, parameters = item.strip().lower().partition(";")
        name = name.strip()
        weight = _weight(parameters)
        if name in {ZSTD, GZIP} and weight > 0 and (weight, name) > (best_weight, best):
            best, best_weight = name, weight
    return best


def _weight(parameters: str) -> float:
    text = parameters.strip()
    if not text.startswith("q="):
        return 1.0
    try:
        weight = float(text[2:])
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def _encode(body: bytes, encoding: str) -> bytes:
    if encoding == GZIP:
        return gzip.compress(body, compresslevel=6, mtime=0)
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress(body)
