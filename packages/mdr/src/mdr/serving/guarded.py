"""The HTTP protocol with limits that the server program has not: size of a request's head, and its time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mdr.answers.faults import status_of
from mdr.api.problems import MEDIA_TYPE, body, headers_of, problem
from mdr.errors import MdrError, UsageError

if TYPE_CHECKING:
    from mdr.serving.options import Options


def _refusals() -> dict[str, bytes]:
    """Return each refusal as it goes onto the wire: a whole problem document, made once."""
    errors = (
        UsageError(
            "head-too-large",
            "the request line and headers together are too long",
            hint="send fewer or shorter headers",
        ),
        UsageError(
            "head-too-slow", "the headers did not arrive in time", hint="send them at once"
        ),
        UsageError(
            "bad-request", "this is no HTTP request", hint="ask with HTTP/1.1, over TLS if a proxy does it"
        ),
    )  # fmt: skip
    return {error.code: _answer(error) for error in errors}


def _answer(error: MdrError) -> bytes:
    data, status = body(problem(error)), status_of(error)
    fields = {
        "connection": "close",
        "content-type": MEDIA_TYPE,
        "content-length": str(len(data)),
        "x-content-type-options": "nosniff",
        **headers_of(error),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + data


REFUSALS: Final = _refusals()
"""By code."""


class Guarded(HttpToolsProtocol):
    """Closes a connection whose request head is too long or takes too long."""

    limits: ClassVar[Options]
    _head_bytes = 0
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head."""
        if self._in_head:
            self._arm()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.limits.max_head_bytes:
            self._refuse("head-too-large")

    def on_headers_complete(self) -> None:
        """Stop the clock: a body has limits of its own."""
        self._in_head, self._head_bytes = False, 0
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next head; its clock starts with its first byte."""
        super().on_message_complete()
        self._in_head = True

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_head and not self.transport.is_closing():
            self._refuse("head-too-slow")

    def _refuse(self, code: str) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        if cycle is not None and not cycle.response_complete:
            self.transport.close()  # an answer is on its way: nothing may be written into it
            return
        self.transport.write(REFUSALS[code])
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a reader who asks for another protocol gets HTTP."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._disarm()
        self._refuse("bad-request")


def guarded(options: Options) -> type[HttpToolsProtocol]:
    """Return the protocol class for a server of these options."""
    return type("Guarded", (Guarded,), {"limits": options})
