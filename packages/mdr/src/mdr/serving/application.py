"""The service as one ASGI application: siblings side by side, the fast lane in front, the envelope around."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from mdr.errors import MdrError, StoreError, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from mdr.answers.answer import Application, Receive, Scope, Send
    from mdr.answers.service import Service
    from mdr.registry.stores import Stores
    from mdr.serving.logs import JsonLog
    from mdr.serving.options import Options
    from mdr.settings import Settings


class Registry:
    """Opens its stores when the process starts, and closes them in order when it ends."""

    def __init__(self, settings: Settings, options: Options, base_url: str, log: JsonLog) -> None:
        self._settings = settings
        self._options = options
        self._base_url = base_url
        self._log = log
        self._app: Application | None = None
        self._open = AsyncExitStack()
        self.failure: MdrError | None = None
        """Why the start failed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or the process's start and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None and scope["type"] == "http":
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except MdrError as error:
            self.failure = error
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._open.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        from mdr.answers.service import Bounds, Service

        stores = _stores(self._settings)
        self._open.callback(stores.close)
        bounds = Bounds(
            threads=self._options.threads,
            seconds=self._options.request_seconds,
            kept_bytes=self._options.kept_bytes,
        )
        service = Service(
            settings=self._settings, stores=stores, base_url=self._base_url, bounds=bounds
        )
        self._open.callback(service.close)
        self._app = await self._assemble(service)

    def _warn_of_proxy(self) -> None:
        self._log.event(
            "warning",
            "proxy-not-trusted",
            message="X-Forwarded-For came from an address that --trust-proxy does not name, so that all "
            "readers behind it share one rate limit",
        )

    async def _assemble(self, service: Service) -> Application:
        from mdr.answers.service import FastLane
        from mdr.mcp.server import HttpEndpoint
        from mdr.serving.clients import Clients
        from mdr.serving.envelope import Envelope
        from mdr.serving.metrics import Metrics
        from mdr.serving.names import Names
        from mdr.serving.siblings import Siblings
        from mdr.web.routes import create
        from mdr.web.views import badge_views

        options, metrics = self._options, Metrics()
        metrics.watch(service)
        views = badge_views(service.stores)
        views.start()
        self._open.callback(views.close)
        names = Names(options, self._base_url)
        tools = HttpEndpoint(service.reading, service.in_thread)
        await self._open.enter_async_context(tools.running())
        siblings = Siblings(
            api=_api(service, metrics, options), tools=tools.app, pages=create(service, views)
        )
        return Envelope(
            FastLane(siblings, service),
            options=options,
            names=names,
            methods=siblings.methods,
            clients=Clients(options.rate, options.trusted_proxies, warn=self._warn_of_proxy),
            log=self._log,
            metrics=metrics,
        )


def _stores(settings: Settings) -> Stores:
    from mdr.registry.local import settings_for
    from mdr.registry.stores import open_stores

    chosen = settings_for(settings)
    stores = open_stores(chosen, create=not chosen.read_only)
    if stores is None:
        raise StoreError("registry-missing", "there is no registry in the data folder")
    return stores


def _api(service: Service, metrics: Any, options: Options) -> Starlette:
    from mdr.answers.answer import Answer
    from mdr.answers.sent import Sent
    from mdr.api.application import create
    from mdr.api.problems import body
    from mdr.serving.health import health_routes

    app = create(service)
    app.include_router(health_routes(service, metrics, min_free_bytes=options.min_free_bytes))

    async def described(request: Any) -> Sent:
        def answer() -> Answer:
            return Answer(body=body(app.openapi()), media_type="application/json")

        return Sent(await service.answered(request.scope, answer))

    app.router.add_route("/openapi.json", described, methods=["GET"], include_in_schema=False)
    return app


def create_application(
    settings: Settings, options: Options, base_url: str, log: JsonLog
) -> Registry:
    """Build the application of one process.

    Args:
        settings: Where the data is.
        options: How it is served.
        base_url: Where readers reach it.
        log: Where lines go.

    Raises:
        mdr.errors.UsageError: bad-url.
    """
    if not base_url.startswith(("http://", "https://")) or base_url.endswith("/"):
        raise UsageError(
            "bad-url", f"{base_url!r} is no address", hint="such as https://registry.example"
        )
    return Registry(settings, options, base_url, log)
