"""The JSON documents of the client commands; keys and order are stable and only ever added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdr.install.destination import destinations
from mdr.install.installer import find
from mdr.install.links import expand_links
from mdr.install.lock import entry_values
from mdr.install.tree import Problem, Shape, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.digest import Sha256
    from mdr.install.destination import Roots
    from mdr.install.installer import Placed, Report
    from mdr.install.lock import Entry


def entry_document(entry: Entry, state: str) -> dict[str, Any]:
    """Write E: the fields of the lock, and what is on disk."""
    return {**entry_values(entry), "state": state}


def state_of(entry: Entry, roots: Roots, read: Callable[[Sha256], bytes | None]) -> str:
    """Say ``intact``, ``changed``, ``missing`` or ``not_installed``, by hashing what is there."""
    places = destinations(entry, roots)
    if not places:
        return "not_installed"
    expected = expand_links(entry.files, read)
    absent, missing = 0, False
    for place in places:
        found = find(place)
        if found.shape is Shape.ABSENT:
            absent += 1
            continue
        if found.shape is not (Shape.FOLDER if place.is_folder else Shape.FILE):
            return "changed"
        problems = {difference.problem for difference in compare(expected, found)}
        if problems - {Problem.MISSING}:
            return "changed"
        missing = missing or bool(problems)
    if absent == len(places):
        return "not_installed"
    return "missing" if absent or missing else "intact"


def placed_document(placed: Placed) -> dict[str, Any]:
    """Write one element of ``installed`` or ``unchanged``."""
    return {
        "ref": placed.entry.ref,
        "sha256": placed.entry.sha256,
        "target": str(placed.target),
        "path": placed.shown,
    }


def install_document(report: Report, *, frozen: bool, offline: bool) -> dict[str, Any]:
    """Write the answer of ``install``."""
    return {
        "frozen": frozen,
        "offline": offline,
        "installed": [placed_document(placed) for placed in report.installed],
        "unchanged": [placed_document(placed) for placed in report.unchanged],
        "failed": [
            {"ref": f.entry.ref, "code": f.error.code, "message": f.error.message}
            for f in report.failed
        ],
    }
