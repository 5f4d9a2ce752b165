"""Between FastAPI and answers: a response that sends a ready answer, and one that sends a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from mdr.answers.answer import IMMUTABLE, Answer
from mdr.answers.faults import status_of
from mdr.answers.sent import Sent
from mdr.api.models import Problem
from mdr.api.problems import MEDIA_TYPE, body, headers_of, problem
from mdr.audit.run import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mdr.answers.answer import Scope
    from mdr.answers.service import Service
    from mdr.errors import MdrError

TEXT: str = "text/plain; charset=utf-8"
VIEWS_FRESH: float = 2.0
"""Seconds for which a document may show an older number of badge views."""
RESOLVED_FRESH: float = 3_600.0
"""The same for ``resolve``, which is asked most and read for its hash."""


class ProblemResponse(Response):
    """Sends an error."""

    media_type = MEDIA_TYPE

    def __init__(self, error: MdrError) -> None:
        super().__init__(body(problem(error)), status_of(error), headers_of(error))
        self.code = error.code


async def document(
    service: Service,
    scope: Scope,
    make: Callable[[], dict[str, Any]],
    *,
    fresh_seconds: float | None = None,
) -> Response:
    """Answer with a document.

    Raises:
        mdr.errors.MdrError: what ``make`` raises.
    """

    def answer() -> Answer:
        return Answer(body=body(make()), media_type="application/json", fresh_seconds=fresh_seconds)

    return Sent(await service.answered(scope, answer))


async def blob(service: Service, scope: Scope, make: Callable[[], bytes], etag: str) -> Response:
    """Answer with bytes that never change: a stranger's file, shown as text and never as a page."""

    def answer() -> Answer:
        data = make()
        return Answer(
            body=data,
            media_type=TEXT if unreadable(data) is None else "application/octet-stream",
            etag=etag,
            cache_control=IMMUTABLE,
            ranges=True,
            headers=(("content-security-policy", "default-src 'none'; sandbox"),),
        )

    return Sent(await service.answered(scope, answer))


def problems(*statuses: int) -> Mapping[int | str, dict[str, Any]]:
    """Describe, for OpenAPI, the problems that a route answers with."""
    shape = {"schema": Problem.model_json_schema()}
    texts = {
        304: "Not modified",
        400: "bad-reference, digest-too-short",
        401: "token-missing, token-unknown, token-revoked, token-expired",
        403: "token-scope",
        404: "not-found",
        409: "ambiguous-reference, with candidates",
        413: "body-too-large",
        415: "media-type",
        416: "The range has no byte of the body",
        422: "invalid, bad-cursor, unknown-ruleset",
        429: "rate-limited, with Retry-After",
        451: "tombstone, with sha256, reason, advisory and at",
        503: "index-unreadable, overloaded, timeout",
    }
    return {
        status: {"description": texts[status]}
        if status in {304, 416}
        else {"description": texts[status], "content": {MEDIA_TYPE: shape}}
        for status in statuses
    }
