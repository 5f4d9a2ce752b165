"""The reads of the contract. Nobody needs an account for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from mdr.api.models import (
    GRADES,
    HEX64,
    KINDS,
    AuditDocument,
    DiffDocument,
    Hashes,
    KnownDocument,
    ResolveDocument,
    SearchDocument,
    ShowDocument,
    VersionDocument,
    VersionsDocument,
)
from mdr.api.responses import RESOLVED_FRESH, VIEWS_FRESH, blob, document, problems
from mdr.digest import Sha256

if TYPE_CHECKING:
    from mdr.answers.service import Service

from starlette.responses import Response

Id = Annotated[
    str, Path(description="Id of an artifact, `art_` and 16 characters.", max_length=200)
]
Selector = Annotated[str, Path(description="A label, a SHA-256, or `latest`.", max_length=200)]
Digest = Annotated[Sha256, Path(description="SHA-256, 64 lower-case digits.", pattern=HEX64)]
Side = Annotated[str, Query(description="A label, a SHA-256, or `latest`.", max_length=200)]
Cursor = Annotated[
    str | None, Query(description="`next_cursor` of the page before.", max_length=400)
]


def _ok(model: type) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


def search_routes(service: Service) -> APIRouter:
    """Return the route that lists and searches."""
    router = APIRouter(tags=["read"])

    @router.get(
        "/artifacts",
        operation_id="search",
        responses={**_ok(SearchDocument), **problems(304, 422, 429, 503)},
    )
    async def search(  # noqa: PLR0917 - the contract's parameters
        request: Request,
        q: Annotated[str, Query(description="Words; none lists everything.", max_length=400)] = "",
        kind: KINDS | None = None,
        owner: Annotated[str | None, Query(max_length=200)] = None,
        grade: GRADES | None = None,
        license_: Annotated[str | None, Query(alias="license", max_length=200)] = None,
        host: Annotated[str | None, Query(max_length=300)] = None,
        mentions: Annotated[str | None, Query(max_length=300)] = None,
        tool: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        cursor: Cursor = None,
    ) -> Response:
        """Find artifacts by words and facets; without either, list what the registry holds."""
        from mdr.store.search import Query as Question

        question = Question(
            words=q, kind=kind, owner=owner, grade=grade, license=license_, host=host,
            mentions=mentions, tool=tool, limit=limit, cursor=cursor,
        )  # fmt: skip
        reading = service.reading
        return await document(
            service, request.scope, lambda: reading.search(question), fresh_seconds=VIEWS_FRESH
        )

    return router


def artifact_routes(service: Service) -> APIRouter:
    """Return the routes of one artifact."""
    router, reading = APIRouter(prefix="/artifacts", tags=["read"]), service.reading

    @router.get(
        "/{id}",
        operation_id="show",
        responses={**_ok(ShowDocument), **problems(304, 404, 422, 429, 451, 503)},
    )
    async def show(request: Request, id: Id) -> Response:  # noqa: A002 - the contract's name
        """Return an artifact, its versions, and the audit of the latest."""
        return await document(
            service, request.scope, lambda: reading.artifact(id), fresh_seconds=VIEWS_FRESH
        )

    @router.get(
        "/{id}/versions",
        operation_id="versions",
        responses={**_ok(VersionsDocument), **problems(304, 404, 422, 429, 503)},
    )
    async def versions(
        request: Request,
        id: Id,  # noqa: A002 - the contract's name
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Cursor = None,
    ) -> Response:
        """List the versions of an artifact, newest first."""
        return await document(
            service, request.scope, lambda: reading.versions(id, limit=limit, cursor=cursor)
        )

    @router.get(
        "/{id}/versions/{label}",
        operation_id="version",
        responses={**_ok(VersionDocument), **problems(304, 400, 404, 409, 422, 429, 451, 503)},
    )
    async def version(request: Request, id: Id, label: Selector) -> Response:  # noqa: A002 - the contract's name
        """Return one version with its files and its audit."""
        return await document(
            service, request.scope, lambda: reading.version(id, label), fresh_seconds=VIEWS_FRESH
        )

    @router.get(
        "/{id}/diff",
        operation_id="diff",
        responses={**_ok(DiffDocument), **problems(304, 400, 404, 409, 422, 429, 451, 503)},
    )
    async def diff(
        request: Request,
        id: Id,  # noqa: A002 - the contract's name
        from_: Annotated[Side, Query(alias="from")],
        to: Side = "latest",
    ) -> Response:
        """Compare two versions: lines, meaning, files."""
        return await document(
            service, request.scope, lambda: reading.diff(id, from_, to), fresh_seconds=VIEWS_FRESH
        )

    return router


def bytes_routes(service: Service) -> APIRouter:
    """Return the routes about references and bytes."""
    router, reading = APIRouter(tags=["read"]), service.reading

    @router.get(
        "/resolve",
        operation_id="resolve",
        responses={**_ok(ResolveDocument), **problems(304, 400, 404, 409, 422, 429, 451, 503)},
    )
    async def resolve(
        request: Request,
        ref: Annotated[
            str, Query(description="As on the command line, such as `owner/repo/name@sha256:HEX`.")
        ],
    ) -> Response:
        """Turn a reference into exact bytes."""
        return await document(
            service, request.scope, lambda: reading.resolve(ref), fresh_seconds=RESOLVED_FRESH
        )

    @router.get(
        "/blob/{sha256}",
        operation_id="blob",
        responses={
            200: {"description": "The bytes.", "content": {"application/octet-stream": {}, "text/plain": {}}},
            206: {"description": "The part asked for.", "content": {"application/octet-stream": {}, "text/plain": {}}},
            **problems(304, 404, 416, 422, 429, 451, 503),
        },
        response_class=Response,
    )  # fmt: skip
    async def blob_(request: Request, sha256: Digest) -> Response:
        """Return the bytes of a hash, for ever the same; parts by `Range`."""
        return await blob(service, request.scope, lambda: reading.blob(sha256), sha256)

    @router.get(
        "/audit/{sha256}",
        operation_id="audit",
        responses={**_ok(AuditDocument), **problems(304, 404, 422, 429, 451, 503)},
    )
    async def audit(
        request: Request,
        sha256: Digest,
        kind: KINDS = "skill",
        ruleset: Annotated[str | None, Query(max_length=40)] = None,
    ) -> Response:
        """Grade the file of a hash, without the folder around it."""
        return await document(service, request.scope, lambda: reading.audit(sha256, kind, ruleset))

    return router


def verify_route(service: Service) -> APIRouter:
    """Return the question about many hashes."""
    router = APIRouter(tags=["read"])

    @router.post(
        "/verify",
        operation_id="verifyHashes",
        responses={**_ok(KnownDocument), **problems(413, 415, 422, 429, 503)},
    )
    async def verify(question: Hashes) -> Response:
        """Say which hashes are known, how they are graded, and which are withdrawn."""
        from mdr.api.problems import body

        answer = await service.in_thread(lambda: body(service.reading.verify(question.hashes)))
        return Response(
            answer, media_type="application/json", headers={"cache-control": "no-store"}
        )

    return router
