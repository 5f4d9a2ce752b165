"""The interface for programs, the tools for agents and the pages for people, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.routing import Match

from mdr.errors import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from mdr.answers.answer import Application, Receive, Scope, Send

BASE: Final = "/api/v1"
WITHOUT_BASE: Final = ("/openapi.json", "/healthz", "/readyz", "/metrics")
"""What answers at the root, and, as badges do, below :data:`BASE` too."""
API_PREFIXES: Final = ("/api/", "/mcp/", *WITHOUT_BASE)
TOOLS: Final = "/mcp"
ROUTED: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Siblings:
    """Chooses by path, and knows which methods a path has."""

    def __init__(self, *, api: Starlette, tools: Application, pages: Starlette) -> None:
        self._api = api
        self._tools = tools
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on.

        Raises:
            mdr.errors.UsageError: method-not-allowed, for a stream or a session that tools have not.
        """
        path = scope["path"] = canonical(scope["path"])
        if path == TOOLS:
            scope["mdr.route"] = TOOLS
            if scope["method"] != "POST":
                raise UsageError(
                    "method-not-allowed", "tools are called with POST", hint="see mdr mcp --help"
                )
            await self._tools(scope, receive, send)
        else:
            await self._owner(path)(scope, receive, send)

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the methods that a path has, those that follow from others too; none: no such path."""
        path = canonical(path)
        found = ["POST"] if path == TOOLS else self._routed(path)
        if "GET" in found:
            found.insert(1, "HEAD")
        return (*found, "OPTIONS") if found else ()

    def _owner(self, path: str) -> Starlette:
        return self._api if path.startswith(API_PREFIXES) else self._pages

    def _routed(self, path: str) -> list[str]:
        routes = self._owner(path).router.routes
        scope = {"type": "http", "path": path, "root_path": "", "headers": [], "query_string": b""}
        return [
            method
            for method in ROUTED
            if any(each.matches({**scope, "method": method})[0] is Match.FULL for each in routes)
        ]


def canonical(path: str) -> str:
    """Return the path under which something is routed."""
    if path == f"{TOOLS}/":
        return TOOLS
    rest = path.removeprefix(BASE)
    return rest if rest in WITHOUT_BASE or rest.startswith("/badge/") else path
