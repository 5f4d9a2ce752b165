"""The HTTP interface as one FastAPI application; its OpenAPI document is generated from the routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from mdr import __version__
from mdr.api.reads import artifact_routes, bytes_routes, search_routes, verify_route
from mdr.api.responses import ProblemResponse
from mdr.api.writes import people_writes, trail_route, version_writes
from mdr.errors import BadReference, MdrError, UsageError

if TYPE_CHECKING:
    from mdr.answers.service import Service

BASE: Final = "/api/v1"
MAX_LISTED: Final = 20
"""Faults of one request that are named."""
DESCRIPTION: Final = """\
Agent-read markdown, content-addressed. Documents are those of `mdr COMMAND --json`; errors are
`application/problem+json` with a stable `code`. Every read answers `If-None-Match`; blobs never change.
A field or a route that will go is announced by `Deprecation` and `Sunset` headers at least 180 days before.
"""


def create(service: Service) -> FastAPI:
    """Build the interface.

    Args:
        service: What it answers from.

    Returns:
        An application with every route below ``/api/v1``; whoever mounts it adds the rest.
    """
    app = FastAPI(
        title="mdr registry",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": service.base_url}],
    )
    reads = (search_routes, artifact_routes, bytes_routes, verify_route)
    for routes in (*reads, version_writes, people_writes, trail_route):
        app.include_router(routes(service), prefix=BASE)
    add_problems(app)
    return app


def add_problems(app: FastAPI) -> None:
    """Answer every error with a problem."""
    app.add_exception_handler(MdrError, _ours)  # type: ignore[arg-type]  # starlette types the base class
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _ours_to_mend)


async def _ours(request: Request, error: MdrError) -> ProblemResponse:
    request.scope["mdr.error"] = error
    return ProblemResponse(error)


async def _ours_to_mend(request: Request, _error: Exception) -> ProblemResponse:
    """Say that the fault is ours, and no more; the error goes on to whoever writes it down."""
    return await _ours(request, MdrError("internal", "the registry failed"))


async def _invalid(request: Request, error: RequestValidationError) -> ProblemResponse:
    """Name each fault with its place; never repeat what was sent."""
    faults = [
        {
            "in": str(each["loc"][0]),
            "name": ".".join(map(str, each["loc"][1:])),
            "message": each["msg"],
        }
        for each in error.errors()[:MAX_LISTED]
    ]
    first = faults[0] if faults else {"in": "request", "name": "", "message": "not readable"}
    where = f"{first['in']} {first['name']}".strip()
    return await _ours(
        request,
        UsageError(
            "invalid",
            f"{where}: {first['message']}",
            hint="see /openapi.json for what is taken",
            data={"errors": faults},
        ),
    )


async def _http(request: Request, error: HTTPException) -> ProblemResponse:
    """Describe what the router itself refuses, or what it met while it read a body."""
    if isinstance(error.__cause__, MdrError):
        return await _ours(request, error.__cause__)
    if error.status_code == 404:
        return await _ours(
            request,
            BadReference("not-found", "there is no such page", hint="see /openapi.json"),
        )
    codes = {405: "method-not-allowed", 413: "body-too-large", 415: "media-type"}
    response = await _ours(
        request,
        UsageError(
            codes.get(error.status_code, "invalid"), str(error.detail), hint="see /openapi.json"
        ),
    )
    response.headers.update(dict(error.headers or {}))
    return response
