"""Errors as pages: the code and the hint of the command line, and never what happened inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mdr.answers.faults import status_of
from mdr.errors import MdrError
from mdr.web.pages import page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdr.answers.answer import Answer

TITLES: Final[Mapping[int, str]] = {
    400: "This reference cannot be read",
    401: "A token is needed",
    403: "This is not allowed",
    404: "Nothing is here",
    405: "This page is only read",
    408: "The request did not arrive",
    409: "More than one thing has this name",
    410: "This is gone",
    413: "The request is too large",
    414: "The address is too long",
    415: "Not a media type that is read here",
    421: "This server has another name",
    422: "This cannot be read",
    429: "Too many requests",
    451: "These bytes were withdrawn",
    500: "Something broke on our side",
    502: "A source cannot be read",
    503: "The registry cannot answer now",
}
INSIDE: Final = "The fault is ours and has been written down. Nothing you did caused it."
LATER: Final = (
    "A part of the registry that this page needs cannot be reached. Please try again soon."
)


def problem_page(
    error: Exception, base_url: str, *, near: Sequence[Mapping[str, str]] = ()
) -> Answer:
    """Write the page of an error.

    Args:
        error: One of ours, or anything else, of which nothing is told.
        base_url: Where readers reach the service.
        near: Things of a similar name: ``{name, url}``.
    """
    status = status_of(error) if isinstance(error, MdrError) else 500
    headers: tuple[tuple[str, str], ...] = ()
    data: dict[str, Any] = {}
    message, hint, code = INSIDE, "", "internal"
    if isinstance(error, MdrError):
        code = error.code
        if status in {502, 503}:
            message = LATER
        elif status < 500:
            message, hint, data = error.message, error.hint, error.data
    if status in {429, 503}:
        headers = (("retry-after", str(data.get("retry_after", 1))),)
    elif status == 405:
        headers = (("allow", "GET, HEAD, OPTIONS"),)
    candidates = data.get("candidates")
    return page(
        "problem",
        base_url,
        status=status,
        cache_control="no-store",
        headers=headers,
        http_status=status,
        title=TITLES.get(status, "The request failed"),
        code=code,
        message=message,
        hint=hint,
        tombstone=_tombstone(data) if status == 451 else None,
        candidates=[str(each) for each in candidates] if isinstance(candidates, list) else [],
        near=near,
    )


def _tombstone(data: Mapping[str, Any]) -> dict[str, str | None]:
    names = ("sha256", "reason", "advisory", "at")
    return {name: None if data.get(name) is None else str(data[name]) for name in names}
