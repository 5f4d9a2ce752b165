"""The pages as one ASGI application, and the routes that it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mdr.answers.answer import IMMUTABLE, Answer, Ready
from mdr.answers.sent import Sent
from mdr.errors import BadReference, MdrError, Refusal, UsageError
from mdr.reference.parse import is_label
from mdr.web.assets import served
from mdr.web.badge import badge, notice
from mdr.web.problems import problem_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from mdr.answers.answer import Scope
    from mdr.answers.service import Service
    from mdr.web.views import BadgeViews

    Endpoint = Callable[[Request], Awaitable[Response]]

SVG: Final = "image/svg+xml; charset=utf-8"
BADGE_CACHE: Final = "no-cache, max-age=0"
"""Asked about at every load, so that every load counts; unchanged, it costs a 304 without a body."""
BADGE_HEADERS: Final = (
    ("content-security-policy", "default-src 'none'"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("x-content-type-options", "nosniff"),
)


PLACES: Final = ("/a/", "/about/", "/hash/", "/o/", "/search/")
"""Where an address with a slash too many leads to the one without, on whatever host it was asked for."""
NEAR: Final = 5
"""Artifacts that the page of a wrong address suggests."""


def create(service: Service, views: BadgeViews) -> Starlette:
    """Build the pages.

    Args:
        service: What to answer from.
        views: Counts the loads of badges; started and closed by whoever made it.
    """

    async def failed(request: Request, error: Exception) -> Response:
        return await _problem(service, request, error)

    handlers: dict[Any, Any] = {MdrError: failed, HTTPException: failed, Exception: failed}
    app = Starlette(routes=routes(service, views), exception_handlers=handlers)
    app.router.redirect_slashes = False  # it would send readers to whatever Host a request names
    return app


def routes(service: Service, views: BadgeViews) -> list[Route]:
    """Return every page, feed and badge; errors of ours are left to the application's handlers."""
    from mdr.web import artifact_page, audit_page, diff_page, feeds, places_page, search_page
    from mdr.web import version_page as versions

    drawn = artifact_page.Drawn()

    def get(path: str, make: Callable[[Request], Answer]) -> Route:
        return Route(path, _endpoint(service, make), methods=["GET"])

    return [
        get("/", lambda _: search_page.home_page(service)),
        get("/search", lambda r: search_page.search_page(service, r.query_params)),
        get("/a/{id}", lambda r: artifact_page.artifact_page(service, r.path_params["id"], drawn)),
        get("/a/{id}/feed.atom", lambda r: feeds.feed(service, r.path_params["id"])),
        get(
            "/a/{id}/v/{label}",
            lambda r: _version(service, r.path_params["id"], r.path_params["label"]),
        ),
        get(
            "/a/{id}/v/{label}/f/{path:path}",
            lambda r: versions.file_page(
                service, r.path_params["id"], r.path_params["label"], r.path_params["path"]
            ),
        ),
        get(
            "/a/{id}/diff/{span}",
            lambda r: diff_page.diff_page(service, r.path_params["id"], r.path_params["span"]),
        ),
        get("/o/{owner}", lambda r: places_page.owner_page(service, r.path_params["owner"])),
        get(
            "/r/{where:path}",
            lambda r: places_page.repository_page(
                service, r.path_params["where"].rstrip("/"), r.query_params.get("page", "1")
            ),
        ),
        get("/hash/{sha256}", lambda r: places_page.hash_page(service, r.path_params["sha256"])),
        get("/about/audit", lambda _: audit_page.audit_page(service)),
        get("/sitemap.xml", lambda _: feeds.sitemap_index(service)),
        get(
            "/sitemap-{part:int}.xml",
            lambda r: feeds.sitemap_part(service, r.path_params["part"]),
        ),
        get("/robots.txt", lambda _: feeds.robots(service)),
        get("/static/{name}", lambda r: _asset(r.path_params["name"])),
        get("/favicon.ico", lambda _: _icon()),
        get("/badge/{id}.svg", lambda r: _badge(service, views, r.path_params["id"])),
    ]


def _endpoint(service: Service, make: Callable[[Request], Answer]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return Sent(await service.answered(request.scope, lambda: make(request)))

    return endpoint


def _version(service: Service, artifact_id: str, label: str) -> Answer:
    """Answer with a version's page; ``latest`` and hashes lead to the page of the label they mean."""
    from mdr.web.version_page import version_page

    if is_label(label):
        return version_page(service, artifact_id, label)
    exact = service.reading.resolved(artifact_id, label).version.label
    location = f"/a/{artifact_id}/v/{exact}"
    return Answer(
        body=b"", media_type="text/plain", status=302, etag=exact, headers=(("location", location),)
    )


def _badge(service: Service, views: BadgeViews, artifact_id: str) -> Answer:
    """Answer with a badge; one without an artifact says so, and is a 404 all the same."""
    status, served_to = 200, None
    try:
        resolved = service.reading.resolved(artifact_id)
        svg = badge(resolved.artifact.name, resolved.version.grade or None)

        def served_to(scope: Scope) -> None:
            views.seen(artifact_id, scope)
    except BadReference:
        svg, status = notice("mdr", "not found"), 404
    except Refusal as error:
        if error.code != "tombstone":
            raise
        svg, status = notice("mdr", "withdrawn"), 451
    return Answer(
        body=svg.encode(),
        media_type=SVG,
        status=status,
        cache_control=BADGE_CACHE,
        headers=BADGE_HEADERS,
        served=served_to,
    )


def _asset(name: str) -> Answer:
    asset = served(name)
    if asset is None:
        raise BadReference("not-found", "there is no such file", hint="start at /")
    nosniff = (("x-content-type-options", "nosniff"),)
    return Answer(
        body=asset.body, media_type=asset.media_type, cache_control=IMMUTABLE, headers=nosniff
    )


def _icon() -> Answer:
    from mdr.web.assets import assets

    icon = assets()["icon.svg"]
    return Answer(body=icon.body, media_type=icon.media_type)


async def _problem(service: Service, request: Request, error: Exception) -> Response:
    """Answer with the page of an error, and tell the log which one it was."""
    path = request.scope["path"]
    if isinstance(error, HTTPException):
        if error.status_code == 404 and path.endswith("/") and path.startswith(PLACES):
            return RedirectResponse(path.rstrip("/"), status_code=308)
        error = _ours(error)
    if isinstance(error, MdrError):
        request.scope["mdr.error"] = error
    near = error.data.get("near") if isinstance(error, BadReference) else None
    if isinstance(error, BadReference) and error.code == "not-found" and not near:
        near = await _like(service, request)
    links = [each for each in near or [] if isinstance(each, dict)]
    return Sent(Ready(problem_page(error, service.base_url, near=links)))


async def _like(service: Service, request: Request) -> list[dict[str, str]]:
    """Return artifacts that the last word of the address finds, its typing errors forgiven."""
    from mdr.store.search import Query

    path = request.scope["path"]
    words = path.rpartition("/")[2][:100]
    if path.startswith(("/a/", "/hash/", "/badge/", "/static/")) or not words:
        return []
    try:
        query = Query(words=words, limit=NEAR)
        found = await service.in_thread(lambda: service.reading.registry.search(query))
    except MdrError:
        return []  # the page of an error must not fail
    return [{"name": hit.artifact.ref, "url": f"/a/{hit.artifact.id}"} for hit in found.hits]


def _ours(error: HTTPException) -> MdrError:
    if error.status_code == 405:
        return UsageError("method-not-allowed", "pages are read with GET and HEAD")
    return BadReference(
        "not-found", "no page has this address", hint="search for what you were looking for"
    )
