"""Errors as ``application/problem+json`` (RFC 9457): the codes of the command line, with a status."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from mdr.answers.faults import is_told, status_of, told_hint, told_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.errors import MdrError

MEDIA_TYPE: Final = "application/problem+json"
TITLES: Final[Mapping[int, str]] = {
    400: "The request cannot be read",
    401: "A token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "The request did not arrive",
    409: "More than one thing is meant",
    410: "Gone",
    413: "The request is too large",
    414: "The address is too long",
    415: "Not a media type that is read here",
    416: "The range has no byte of the body",
    421: "Not a name of this server",
    422: "The request is not valid",
    429: "Too many requests",
    431: "The head of the request is too long",
    451: "Withdrawn",
    500: "The registry is damaged",
    502: "The source cannot be read",
    503: "Not available now",
}
LINK: Final = re.compile(r"https://[!#-;=?-Z\[\]_a-z~%]+", re.ASCII)
"""An address that may stand in a header: no white space, no quotes, no angle brackets, nothing hidden."""
KNOWN_FIELDS: Final = frozenset({"type", "title", "status", "detail", "code", "hint"})


def problem(error: MdrError) -> dict[str, Any]:
    """Write the document of an error; its data become fields, so ``candidates`` stands at the top."""
    status = status_of(error)
    document: dict[str, Any] = {
        "type": f"urn:mdr:problem:{error.code}",
        "title": TITLES.get(status, "The request failed"),
        "status": status,
        "detail": told_message(error),
        "code": error.code,
        "hint": told_hint(error),
    }
    if is_told(error):
        document |= {key: value for key, value in error.data.items() if key not in KNOWN_FIELDS}
    return document


def headers_of(error: MdrError) -> dict[str, str]:
    """Return the headers that go with an error."""
    status = status_of(error)
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = f'Bearer realm="mdr", error="{_bearer(error.code)}"'
    elif status == 403 and error.code == "token-scope":
        headers["www-authenticate"] = 'Bearer realm="mdr", error="insufficient_scope"'
    elif status in {429, 503}:
        headers["retry-after"] = str(error.data.get("retry_after", 1))
    elif status == 451 and LINK.fullmatch(str(error.data.get("advisory"))):
        headers["link"] = f'<{error.data["advisory"]}>; rel="blocked-by"'
    return headers


def _bearer(code: str) -> str:
    return "invalid_request" if code == "token-missing" else "invalid_token"


def body(document: Mapping[str, Any]) -> bytes:
    """Write a document as it is sent; a byte of a path that is no UTF-8 is its JSON escape."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
