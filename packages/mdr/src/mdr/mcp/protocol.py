"""The server program of the protocol, with every failure as ``mdr.error/1`` in a result that says ``isError``.

Whatever goes wrong, an agent reads one shape: refusals of ours, arguments that a tool does not take, a tool
that does not exist, a bug. Imported only where tools are served, because the library is heavy.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, TextContent
from pydantic import ValidationError

from mdr.answers.faults import is_told, told_hint, told_message
from mdr.errors import BadReference, MdrError, UsageError
from mdr.mcp.framing import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.mcpserver import Context

MAX_LISTED: Final = 20
"""Faults of one call that are named."""
_LOG: Final = logging.getLogger(__name__)


class Server(MCPServer):
    """Answers calls; what a tool raises beside our own errors becomes one of them."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:
        """Call a tool by name; never raises what an agent would be told in another shape."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error, UnexpectedToolError):
                _LOG.exception("the tool %r failed", name[:80])
            names = [tool.name for tool in await self.list_tools()]
            return failure(_error_of(error, name, names))


def failure(error: MdrError, *, public: bool = True) -> CallToolResult:
    """Return the result of a call that failed.

    Args:
        error: Why.
        public: Whether strangers ask, who are told nothing of this machine, as by the API.
    """
    document = error_document(error, public=public)
    text = json.dumps(document, ensure_ascii=False, indent=2)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=document, is_error=True
    )


def error_document(error: MdrError, *, public: bool) -> dict[str, Any]:
    """Write ``mdr.error/1``, with nothing hidden in it."""
    whole = not public or is_told(error)
    return shown(
        {
            "schema": "mdr.error/1",
            "code": error.code,
            "message": error.message if whole else told_message(error),
            "hint": error.hint if whole else told_hint(error),
            "data": error.data if whole else {},
        }
    )


def _error_of(error: ToolError, name: str, names: list[str]) -> MdrError:
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return _refused(name, cause.errors(include_input=False, include_url=False))
    if isinstance(error, UnexpectedToolError):
        return MdrError("internal", "the registry failed", hint="try again later")
    return BadReference(
        "unknown-tool",
        f"there is no tool {name[:80]!r}",
        hint="tools are " + ", ".join(names),
        data={"tools": names},
    )


def _refused(name: str, errors: list[Any]) -> UsageError:
    """Name each argument that is wrong, and never repeat what was sent."""
    faults: list[Mapping[str, str]] = [
        {"name": ".".join(map(str, each["loc"])), "message": str(each["msg"])}
        for each in errors[:MAX_LISTED]
    ]
    first = faults[0] if faults else {"name": "arguments", "message": "not readable"}
    return UsageError(
        "invalid",
        f"{name}: {first['name']}: {first['message']}",
        hint="the tool's description says what it takes",
        data={"errors": faults},
    )
