"""What changes the registry: with a token of the right scope only, each with a line in the audit trail."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from mdr.api.models import HEX64, Document
from mdr.api.responses import problems
from mdr.digest import Sha256
from mdr.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.answers.service import Service
    from mdr.registry.tokens import Token

BEARER = HTTPBearer(auto_error=False, description="`Authorization: Bearer mdr_...`")
Secret = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
Id = Annotated[str, Path(description="Id of an artifact.", max_length=200)]
Label = Annotated[str, Path(description="A label such as `git:20260817.d36ff70`.", max_length=200)]
Digest = Annotated[Sha256, Path(description="SHA-256, 64 lower-case digits.", pattern=HEX64)]
NO_STORE = {"cache-control": "no-store"}
REFUSALS = (401, 403, 404, 413, 415, 422, 429, 503)


class Reason(BaseModel):
    """Why a version is yanked."""

    reason: str = Field(min_length=1, max_length=2000)


class Burial(Reason):
    """Why bytes are withdrawn."""

    advisory: str | None = Field(default=None, max_length=400)


class Source(BaseModel):
    """A repository to index."""

    source: str = Field(max_length=1000, description="`github:owner/repo` or an https URL.")


class SourceModel(Document):
    """Where a source stands in the schedule."""

    document: Literal["mdr.source/1"] = Field(alias="schema")
    source: str
    host: str
    repository: str
    state: str


class NewDispute(BaseModel):
    """A check that is wrong about a version."""

    artifact: str = Field(max_length=200)
    label: str = Field(max_length=200)
    check: str = Field(max_length=80)
    text: str = Field(min_length=1, max_length=10_000)
    contact: str | None = Field(default=None, max_length=400)


class NewClaim(BaseModel):
    """A repository that belongs to somebody."""

    host: str = Field(max_length=300)
    repository: str = Field(max_length=300)
    claimant: str = Field(min_length=1, max_length=400)
    proof: str = Field(min_length=1, max_length=2000)


class Opened(Document):
    """The number of what was opened."""

    document: Literal["mdr.dispute/1", "mdr.claim/1"] = Field(alias="schema")
    id: int
    state: str


class EventModel(Document):
    """One line of the audit trail."""

    id: int
    at: str
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


class Events(Document):
    """Lines of the audit trail, oldest first."""

    document: Literal["mdr.events/1"] = Field(alias="schema")
    items: list[EventModel]


class Door:
    """Lets writers in."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def through(
        self, secret: HTTPAuthorizationCredentials | None, scope: str, act: Callable[[str], Any]
    ) -> Any:
        """Check a token, then act in a thread.

        Args:
            secret: What the request carries.
            scope: What it must allow.
            act: Called with who acts, as the audit trail names them.

        Raises:
            mdr.errors.Refusal: token-missing, token-unknown, token-revoked, token-expired, token-scope.
        """
        from mdr.registry.tokens import check

        if secret is None:
            raise Refusal(
                "token-missing",
                "this needs a token",
                hint="send Authorization: Bearer mdr_...; mdr token issue NAME --scope SCOPE on the registry's machine makes one",
            )

        def work() -> Any:
            token: Token = check(self._service.stores, secret.credentials, scope)
            return act(f"{token.name} ({token.id})")

        return await self._service.in_thread(work)


def version_writes(service: Service) -> APIRouter:
    """Return the routes that take versions back."""
    from mdr.registry import withdrawals

    router, door = APIRouter(tags=["write"]), Door(service)
    stores, found = service.stores, service.reading.found
    done: dict[int | str, dict[str, Any]] = {204: {"description": "Done."}, **problems(*REFUSALS)}

    @router.put(
        "/artifacts/{id}/versions/{label}/yank",
        operation_id="yank",
        status_code=204,
        responses=done,
    )
    async def yank(id: Id, label: Label, why: Reason, secret: Secret) -> Response:  # noqa: A002 - as in reads
        """Yank a version: `latest` no longer means it, whoever pinned it still gets it."""
        await door.through(
            secret, "versions:yank",
            lambda by: withdrawals.yank(stores, found(id), label, reason=why.reason, by=by),
        )  # fmt: skip
        return Response(status_code=204, headers=NO_STORE)

    @router.delete(
        "/artifacts/{id}/versions/{label}/yank",
        operation_id="unyank",
        status_code=204,
        responses=done,
    )
    async def unyank(id: Id, label: Label, secret: Secret) -> Response:  # noqa: A002 - as in reads
        """Offer a yanked version again."""
        await door.through(
            secret, "versions:yank", lambda by: withdrawals.unyank(stores, found(id), label, by=by)
        )
        return Response(status_code=204, headers=NO_STORE)

    @router.put("/tombstones/{sha256}", operation_id="tombstone", status_code=204, responses=done)
    async def tombstone(sha256: Digest, why: Burial, secret: Secret) -> Response:
        """Serve these bytes to nobody any more: 451, with hash and reason."""
        await door.through(
            secret, "versions:tombstone",
            lambda by: withdrawals.tombstone(
                stores, sha256, reason=why.reason, advisory=why.advisory, by=by
            ),
        )  # fmt: skip
        return Response(status_code=204, headers=NO_STORE)

    @router.delete("/tombstones/{sha256}", operation_id="lift", status_code=204, responses=done)
    async def lift(sha256: Digest, secret: Secret) -> Response:
        """Serve withdrawn bytes again."""
        await door.through(
            secret, "versions:tombstone", lambda by: withdrawals.lift(stores, sha256, by=by)
        )
        return Response(status_code=204, headers=NO_STORE)

    return router


def people_writes(service: Service) -> APIRouter:
    """Return the routes by which people add, object and claim."""
    from mdr.crawl.enqueueing import enqueue
    from mdr.registry import disputes

    router, door, stores = APIRouter(tags=["write"]), Door(service), service.stores

    @router.post(
        "/sources", operation_id="addSource", status_code=202,
        responses={202: {"model": SourceModel}, **problems(*REFUSALS)},
    )  # fmt: skip
    async def add(source: Source, secret: Secret) -> Response:
        """Ask for a repository to be indexed soon; a worker does it."""
        row = await door.through(
            secret, "sources:write", lambda by: enqueue(stores, source.source, by=by)
        )
        answer = {"schema": "mdr.source/1", "source": row.source, "host": row.host,
                  "repository": row.repository_key, "state": row.state}  # fmt: skip
        return JSONResponse(answer, status_code=202, headers=NO_STORE)

    @router.post(
        "/disputes", operation_id="dispute", status_code=201,
        responses={201: {"model": Opened}, **problems(*REFUSALS)},
    )  # fmt: skip
    async def dispute(new: NewDispute, secret: Secret) -> Response:
        """Say that a check is wrong about a version."""

        def act(by: str) -> Any:
            artifact = service.reading.found(new.artifact)
            return disputes.dispute(
                stores,
                artifact,
                new.label,
                check=new.check,
                text=new.text,
                contact=new.contact,
                by=by,
            )

        return _opened("mdr.dispute/1", await door.through(secret, "disputes:write", act))

    @router.post(
        "/claims", operation_id="claim", status_code=201,
        responses={201: {"model": Opened}, **problems(*REFUSALS)},
    )  # fmt: skip
    async def claim(new: NewClaim, secret: Secret) -> Response:
        """Say that a repository is yours."""
        return _opened(
            "mdr.claim/1",
            await door.through(
                secret, "claims:write", lambda by: disputes.claim(stores, by=by, **new.model_dump())
            ),
        )

    return router


def trail_route(service: Service) -> APIRouter:
    """Return the route to the audit trail."""
    from mdr.registry import events

    router, door, stores = APIRouter(tags=["write"]), Door(service), service.stores

    @router.get(
        "/events", operation_id="events",
        responses={200: {"model": Events}, **problems(401, 403, 422, 429, 503)},
    )  # fmt: skip
    async def trail(
        secret: Secret,
        after: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Return the audit trail: who changed what, when."""
        found = await door.through(
            secret, "admin", lambda _: events.events(stores, after=after, limit=limit)
        )
        items = [asdict(event) for event in found]
        return JSONResponse({"schema": "mdr.events/1", "items": items}, headers=NO_STORE)

    return router


def _opened(schema: str, row: Any) -> Response:
    answer = {"schema": schema, "id": row.id, "state": row.state}
    return JSONResponse(answer, status_code=201, headers=NO_STORE)
