"""A ready answer as the response of a route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from mdr.answers.answer import Ready


class Sent(Response):
    """Sends an answer that is ready."""

    def __init__(self, ready: Ready) -> None:
        super().__init__()
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it as the request's conditions ask."""
        await self._ready.send(scope, send)
