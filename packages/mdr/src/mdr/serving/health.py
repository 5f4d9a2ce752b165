"""``/healthz``: the process answers. ``/readyz``: database, blobs and disk do, too. ``/metrics``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from mdr.digest import Sha256
from mdr.errors import MdrError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.answers.service import Service
    from mdr.serving.metrics import Metrics

NOTHING: Final = Sha256("0" * 64)
NO_STORE: Final = {"cache-control": "no-store"}


class HealthModel(BaseModel):
    """The process answers."""

    document: Literal["mdr.health/1"] = Field(alias="schema")
    status: Literal["ok"]


class CheckedModel(BaseModel):
    """One thing that is needed."""

    name: Literal["database", "blobs", "disk"]
    ok: bool
    code: str | None


class ReadyModel(BaseModel):
    """Whether requests should be sent here."""

    document: Literal["mdr.ready/1"] = Field(alias="schema")
    ready: bool
    checks: list[CheckedModel]


def health_routes(service: Service, metrics: Metrics, *, min_free_bytes: int) -> APIRouter:
    """Return the routes that operators ask."""
    router = APIRouter(tags=["operate"])

    @router.get("/healthz", operation_id="health", responses={200: {"model": HealthModel}})
    async def health() -> Response:
        """Say that the process answers."""
        return JSONResponse({"schema": "mdr.health/1", "status": "ok"}, headers=NO_STORE)

    @router.get(
        "/readyz",
        operation_id="ready",
        responses={200: {"model": ReadyModel}, 503: {"model": ReadyModel}},
    )
    async def ready() -> Response:
        """Say whether database, blobs and disk can be used."""
        checks = await service.in_thread(lambda: _checks(service, min_free_bytes))
        good = all(check["ok"] for check in checks)
        answer = {"schema": "mdr.ready/1", "ready": good, "checks": checks}
        return JSONResponse(answer, status_code=200 if good else 503, headers=NO_STORE)

    @router.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text."}},
    )
    async def metrics_() -> Response:
        """Return counters for Prometheus."""
        text, media_type = await service.in_thread(metrics.text)
        return Response(text, headers={"content-type": media_type, **NO_STORE})

    return router


def _checks(service: Service, min_free_bytes: int) -> list[dict[str, Any]]:
    from mdr.store.state import state_token

    stores = service.stores

    def disk() -> None:
        free = shutil.disk_usage(stores.data).free
        if free < min_free_bytes:
            raise MdrError("disk-full", f"{free} bytes are free")

    return [
        _check("database", lambda: state_token(stores)),
        _check("blobs", lambda: stores.blobs.has(NOTHING)),
        _check("disk", disk),
    ]


def _check(name: str, call: Callable[[], object]) -> dict[str, Any]:
    try:
        call()
    except MdrError as error:
        return {"name": name, "ok": False, "code": error.code}
    except OSError:
        return {"name": name, "ok": False, "code": "os-error"}
    return {"name": name, "ok": True, "code": None}
