"""Make the places on this machine hold what entries of the lock say: all of them or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mdr.errors import IntegrityError, MdrError, Refusal
from mdr.install.destination import Destination, Roots, destinations, real_parent
from mdr.install.links import expand_links
from mdr.install.place import Job, Placer, recover
from mdr.install.receipts import Receipts
from mdr.install.tree import Problem, Shape, compare, neutral_manifest, read_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mdr.digest import Sha256
    from mdr.install.fetch import Fetcher
    from mdr.install.lock import Entry, Scope, Target
    from mdr.install.tree import Difference, Found
    from mdr.version.types import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One target of one entry, and where it is."""

    entry: Entry
    target: Target
    shown: str
    """The place as people see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one entry was not installed."""

    entry: Entry
    error: MdrError


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run did. With a failure nothing was written."""

    installed: tuple[Placed, ...] = ()
    unchanged: tuple[Placed, ...] = ()
    failed: tuple[Failure, ...] = ()
    backups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to install, and what may be replaced."""

    entries: tuple[Entry, ...]
    roots: Roots
    data: Path
    force: bool = False
    """Replace bytes that mdr did not write, keeping a backup."""
    earlier: Mapping[tuple[str, str, str], Entry] = field(default_factory=dict)
    """By identity: what the lock held before, whose bytes may be replaced without ``force``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    destination: Destination
    files: tuple[FileEntry, ...]
    keep_backup: bool


def install(
    request: Request, fetcher: Fetcher, check: Callable[[Entry, bytes], MdrError | None]
) -> Report:
    """Install every entry at every target, or nothing. The caller holds the roots (``exclusive``).

    Args:
        request: Entries, roots and permissions.
        fetcher: Where bytes come from.
        check: Recomputes the grade of an entry's named file; called for entries whose bytes are new
            here, before anything is written.

    Returns:
        What was installed, what already was, and what failed.

    Raises:
        mdr.errors.StoreError: the disk failed; what was swapped was swapped back.
    """
    scopes = {target.scope for entry in request.entries for target in entry.targets}
    return _Run(request, fetcher, check).go(scopes)


class _Run:
    def __init__(
        self, request: Request, fetcher: Fetcher, check: Callable[[Entry, bytes], MdrError | None]
    ) -> None:
        self._request = request
        self._fetcher = fetcher
        self._check = check
        self._receipts: dict[Scope, Receipts] = {}
        self._failures: list[Failure] = []
        self._recovered: set[Path] = set()
        self._taken: dict[Path, Entry] = {}

    def go(self, scopes: set[Scope]) -> Report:
        request = self._request
        self._receipts = {
            scope: Receipts(request.data, request.roots.root(scope)) for scope in scopes
        }
        differing: list[tuple[Destination, Found]] = []
        unchanged: list[Destination] = []
        for entry in request.entries:
            self._attempt(entry, lambda e: self._sort(e, unchanged, differing))
        needs = self._needs(differing)
        if self._failures:
            return Report(failed=tuple(self._failures))
        jobs = {
            real_parent(need.destination) / need.destination.path.name: Job(
                destination=need.destination, files=need.files, keep_backup=need.keep_backup
            )
            for need in needs
        }
        backups = self._place(list(jobs.values())) if jobs else ()
        return Report(
            installed=_placed(need.destination for need in needs),
            unchanged=_placed(unchanged),
            backups=backups,
        )

    def _attempt(self, entry: Entry, step: Callable[[Entry], None]) -> None:
        try:
            step(entry)
        except Refusal as error:
            self._failures.append(Failure(entry=entry, error=error))

    def _sort(
        self, entry: Entry, unchanged: list[Destination], differing: list[tuple[Destination, Found]]
    ) -> None:
        """Hash what is there and say which places are right already."""
        expected = self._expected(entry)
        for destination in destinations(entry, self._request.roots):
            parent = real_parent(destination)
            if parent not in self._recovered:
                recover(parent)
                self._recovered.add(parent)
            self._take(destination, parent)
            found = find(destination)
            shaped = found.shape is (Shape.FOLDER if destination.is_folder else Shape.FILE)
            if shaped and not compare(expected, found):
                unchanged.append(destination)
            else:
                differing.append((destination, found))

    def _take(self, destination: Destination, parent: Path) -> None:
        """Refuse one place for two entries, which links or a project in the home folder can bring."""
        place = parent / destination.path.name
        other = self._taken.setdefault(place, destination.entry)
        if other.identity != destination.entry.identity:
            raise Refusal(
                "target-taken",
                f"{other.ref} and {destination.entry.ref} both lead to {destination.shown}",
                hint="remove one of them, or choose another agent with --to",
            )

    def _expected(self, entry: Entry) -> tuple[FileEntry, ...]:
        try:
            return expand_links(entry.files, _nothing)
        except Refusal as error:
            if error.code != "link-unresolved":
                raise
        self._fetcher.gather([entry])
        return expand_links(entry.files, self._fetcher.get)

    def _needs(self, differing: Sequence[tuple[Destination, Found]]) -> list[_Need]:
        """Get and check the bytes of every differing entry, and ask whether its place may be taken."""
        entries = list({d.entry.identity: d.entry for d, _ in differing}.values())
        failures = self._fetcher.gather(entries) if entries else {}
        for entry in entries:
            error = failures.get(entry.identity) or self._audit(entry)
            if error is not None:
                self._failures.append(Failure(entry=entry, error=error))
        needs: list[_Need] = []
        failed = {failure.entry.identity for failure in self._failures}
        for destination, found in differing:
            if destination.entry.identity not in failed:
                self._attempt(
                    destination.entry,
                    lambda _, d=destination, f=found: needs.append(self._need(d, f)),  # type: ignore[misc]
                )
        return needs

    def _audit(self, entry: Entry) -> MdrError | None:
        return self._check(entry, self._fetcher.read(entry.sha256))

    def _need(self, destination: Destination, found: Found) -> _Need:
        files = expand_links(destination.entry.files, self._fetcher.get)
        ours = self._is_ours(destination, files, found)
        if not ours and not self._request.force:
            raise not_ours(destination, compare(files, found))
        return _Need(destination=destination, files=files, keep_backup=not ours)

    def _is_ours(
        self, destination: Destination, files: tuple[FileEntry, ...], found: Found
    ) -> bool:
        """Say whether replacing what is there loses nothing that mdr did not write."""
        if found.shape is Shape.ABSENT:
            return True
        if found.shape is not (Shape.FOLDER if destination.is_folder else Shape.FILE):
            return False
        harmless = {Problem.MISSING, Problem.MODE}
        if not found.odd and {d.problem for d in compare(files, found)} <= harmless:
            return True
        manifest = found.neutral
        if manifest is None:
            return False
        earlier = self._request.earlier.get(destination.entry.identity)
        if earlier is not None and manifest == _written(earlier):
            return True
        return self._receipts[destination.scope].wrote(destination.relative, manifest)

    def _place(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        written: dict[Scope, dict[str, Sha256]] = {}
        for job in jobs:
            place = written.setdefault(job.destination.scope, {})
            place[job.destination.relative] = neutral_manifest(job.files)
        for scope, places in written.items():
            self._receipts[scope].record(places)
        return Placer(self._fetcher.read).place(jobs)


def find(destination: Destination) -> Found:
    """Read what is at a destination now."""
    file_name = None if destination.is_folder else destination.entry.file_name
    return read_place(destination.path, file_name=file_name)


def not_ours(destination: Destination, differences: Sequence[Difference]) -> Refusal:
    """Build the refusal to overwrite, naming what stands in the way."""
    shown = [f"{d.path} ({d.problem})" for d in differences[:5]]
    more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
    said = f": {', '.join(shown)}{more}" if shown else ""
    return Refusal(
        "target-not-ours",
        f"{destination.shown} holds bytes that mdr did not write{said}",
        hint="use --force to replace it and keep a backup, or move it away",
        data={"ref": destination.entry.ref, "path": destination.shown},
    )


def grade_mismatch(entry: Entry, actual: str) -> IntegrityError:
    """Build the error for a lock whose grade is not what the bytes earn."""
    return IntegrityError(
        "grade-mismatch",
        f"{entry.ref}: the lock says grade {entry.grade} by {entry.ruleset}, the bytes earn {actual}",
        hint="the lock was edited or its registry lied; run `mdr add` again",
        data={
            "ref": entry.ref,
            "expected": entry.grade,
            "actual": actual,
            "ruleset": entry.ruleset,
        },
    )


def _written(entry: Entry) -> Sha256 | None:
    try:
        return neutral_manifest(expand_links(entry.files, _nothing))
    except Refusal:
        return None


def _nothing(digest: Sha256) -> bytes | None:  # noqa: ARG001 - stands for a source without bytes
    return None


def _placed(places: object) -> tuple[Placed, ...]:
    return tuple(
        Placed(entry=place.entry, target=target, shown=place.shown)
        for place in places  # type: ignore[attr-defined]
        for target in place.targets
    )
