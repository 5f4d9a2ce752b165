"""Compare every installed byte with the lock, and the lock's grades with the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdr.errors import Refusal
from mdr.install.destination import destinations, real_parent
from mdr.install.installer import find
from mdr.install.judge import regrade
from mdr.install.links import expand_links
from mdr.install.tree import Difference, Problem, Shape, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.digest import Sha256
    from mdr.install.destination import Destination, Roots
    from mdr.install.lock import Entry, Lock
    from mdr.install.tree import Found
    from mdr.version.types import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One element of ``problems``."""

    ref: str
    target: str | None
    path: str
    """The place as people see it."""
    problem: str
    """``changed``, ``missing``, ``extra``, ``mode`` or ``grade``."""
    expected: str | None
    actual: str | None
    why: str = ""
    """For people: what probably happened."""

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "ref": self.ref,
            "target": self.target,
            "path": self.path,
            "problem": self.problem,
            "expected": self.expected,
            "actual": self.actual,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was compared and what was wrong."""

    artifacts: int
    files: int
    """Files of the lock that were compared, once for each place."""
    bytes: int
    troubles: tuple[Trouble, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as locked."""
        return not self.troubles

    def to_document(self) -> dict[str, Any]:
        """Return the answer of ``verify``."""
        return {
            "ok": self.ok,
            "checked": {"artifacts": self.artifacts, "files": self.files, "bytes": self.bytes},
            "problems": [trouble.to_document() for trouble in self.troubles],
        }


def verify(lock: Lock, roots: Roots, read: Callable[[Sha256], bytes | None]) -> Verdict:
    """Hash every file at every target, with no network and no trust in dates or sizes.

    Args:
        lock: What should be there.
        roots: Project and home.
        read: Cached bytes by hash, used only for links inside skills.
    """
    troubles: list[Trouble] = []
    files = size = 0
    for entry in lock.entries:
        try:
            expected = expand_links(entry.files, read)
            places = destinations(entry, roots)
            for place in places:
                real_parent(place)
        except Refusal as error:
            troubles.append(_refused(entry, error))
            continue
        found = [(place, find(place)) for place in places]
        for place, what in found:
            files += len(expected)
            size += sum(file.size for file in expected)
            troubles += _at(place, expected, what)
        troubles += _grade(entry, found)
    return Verdict(artifacts=len(lock.entries), files=files, bytes=size, troubles=tuple(troubles))


def _at(place: Destination, expected: tuple[FileEntry, ...], found: Found) -> list[Trouble]:
    wanted = Shape.FOLDER if place.is_folder else Shape.FILE
    if found.shape not in {wanted, Shape.ABSENT}:
        said = {"folder": "a folder", "file": "a file"}.get(found.shape, "a link or special file")
        whole = Difference(path="", problem=Problem.CHANGED, expected=wanted.value, actual=said)
        return _troubles(place, whole)
    return [t for difference in compare(expected, found) for t in _troubles(place, difference)]


def _troubles(place: Destination, difference: Difference) -> list[Trouble]:
    why = ""
    if difference.crlf:
        why = "line ends were changed to CRLF; see .gitattributes advice of `mdr add`"
    shown = place.shown_file(difference.path) if difference.path else place.shown
    return [
        Trouble(
            ref=place.entry.ref,
            target=str(target),
            path=_printable(shown),
            problem=difference.problem.value,
            expected=difference.expected,
            actual=difference.actual,
            why=why,
        )
        for target in place.targets
    ]


def _grade(entry: Entry, found: list[tuple[Destination, Found]]) -> list[Trouble]:
    """Recompute the grade from the first intact copy on disk; changed copies are reported already."""
    for place, what in found:
        file = what.files.get(entry.file_name)
        if file is None or file.sha256 != entry.sha256:
            continue
        path = place.path / entry.file_name if place.is_folder else place.path
        error = regrade(entry, path.read_bytes())
        if error is None:
            return []
        actual = error.data.get("actual")
        return [
            Trouble(
                ref=entry.ref,
                target=None,
                path=_printable(place.shown_file(entry.file_name)),
                problem="grade",
                expected=entry.grade,
                actual=None if actual is None else str(actual),
                why=error.message,
            )
        ]
    return []


def _refused(entry: Entry, error: Refusal) -> Trouble:
    return Trouble(
        ref=entry.ref,
        target=None,
        path=entry.path,
        problem="changed",
        expected=entry.manifest_sha256,
        actual=None,
        why=error.message,
    )


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
