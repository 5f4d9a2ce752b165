"""What a row of the table of checks is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from mdr.audit.rx import Match
    from mdr.audit.text import Text
    from mdr.audit.view import View


class Hit(NamedTuple):
    """One place that a check found, in offsets of the original bytes."""

    start: int
    end: int
    status: Status
    why: str
    secret: bool = False
    """The bytes are a credential: show only their beginning and length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row: what the page prints, how much it weighs, and the function that looks."""

    id: str
    title: str
    """Exactly as the seed page prints it."""
    severity: Severity
    find: Callable[[Text], Iterable[Hit]]
    worst: Status = Status.FAIL
    """The worst status a place can have; many places of it make further looking pointless."""
    applies: Callable[[Text], bool] | None = None
    """``None``: to every text. Where it says no, the check is ``na``."""
    detail: Callable[[Text], str] | None = None
    """What stands in parentheses after the title; ``None``: the number of places."""


def hit(
    view: View, match: Match, status: Status, why: str, *, secret: bool = False, group: int = 0
) -> Hit:
    """Return the place of a match of a view."""
    return span(view, match.start(group), match.end(group), status, why, secret=secret)


def span(
    view: View, start: int, end: int, status: Status, why: str, *, secret: bool = False
) -> Hit:
    """Return the place of a stretch of a view; ends are mapped so that they never cross."""
    first = view.origin(start)
    last = view.origin(end - 1) + 1 if end > start else first
    return Hit(first, max(last, first), status, why, secret)
