"""``mdr import``: find, by content, which public version each thing that another tool installed is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mdr.artifact.types import Kind
from mdr.digest import sha256
from mdr.errors import LockError, MdrError, Refusal
from mdr.install.agents import AGENTS
from mdr.install.candidate import entry_from, with_entry
from mdr.install.destination import relative_place
from mdr.install.foreign import Foreign, base_folder, read_foreign
from mdr.install.judge import graded, judge
from mdr.install.lock import Pin, Scope, Target
from mdr.reference.types import Latest, Reference
from mdr.registry.compare import verified_blob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mdr.digest import Sha256
    from mdr.install.lock import Entry
    from mdr.install.workspace import Workspace
    from mdr.registry.interface import Registry, Resolved

MAX_FILE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One thing whose bytes are a public version."""

    name: str
    entry: Entry
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """One thing that was not imported."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What ``import`` did."""

    matched: tuple[Matched, ...]
    unmatched: tuple[Unmatched, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the answer of ``import``."""
        return {
            "matched": [
                {"name": m.name, "ref": m.entry.ref, "sha256": m.entry.sha256} for m in self.matched
            ],
            "unmatched": [{"name": u.name, "why": u.why} for u in self.unmatched],
        }


def import_lock(workspace: Workspace, path: Path, targets: tuple[Target, ...]) -> Imported:
    """Match what another tool's lock names, and write the matches to ``mdr.lock``.

    Nothing on disk but the lock is touched.

    Args:
        workspace: Project, home and registry.
        path: The other tool's lock.
        targets: Where things go that do not lie in an agent's folder of this project or home.

    Raises:
        mdr.errors.UsageError: import-unknown, import-unreadable.
    """
    matched: list[Matched] = []
    unmatched: list[Unmatched] = []
    for outcome in _matches(workspace, base_folder(path), read_foreign(path), targets):
        if isinstance(outcome, Matched):
            matched.append(outcome)
        else:
            unmatched.append(outcome)
    with workspace.held([match.entry for match in matched]):
        lock = workspace.lock_or_new()
        locked: list[Matched] = []
        for match in matched:
            try:
                lock = with_entry(lock, match.entry)
                locked.append(match)
            except LockError as error:
                unmatched.append(Unmatched(name=match.name, why=error.message))
        if locked:
            workspace.write(lock)
    return Imported(matched=tuple(locked), unmatched=tuple(unmatched))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meant:
    """One thing whose bytes are a public version that the registry names."""

    foreign: Foreign
    resolved: Resolved
    places: tuple[str, ...]
    """Where the bytes were found."""


def _matches(
    workspace: Workspace, base: Path, foreigners: Sequence[Foreign], targets: tuple[Target, ...]
) -> Iterator[Matched | Unmatched]:
    """Match everything; the registry is asked once about all hashes, and once for all files."""
    registry = workspace.registry()
    here = [_on_disk(base, foreign) or dict(foreign.stated) for foreign in foreigners]
    _index(registry, [each for each, found in zip(foreigners, here, strict=True) if found])
    digests = list(dict.fromkeys(digest for found in here for digest in found.values()))
    answers = registry.find_by_content(digests)
    outcomes = [
        _meant(foreign, found, answers) for foreign, found in zip(foreigners, here, strict=True)
    ]
    wanted = [each.resolved.version.sha256 for each in outcomes if isinstance(each, _Meant)]
    files = registry.each_blob(wanted)
    for outcome in outcomes:
        if isinstance(outcome, _Meant):
            places = _targets(workspace, base, outcome.places) or targets
            yield _entry(outcome, next(files), places)
        else:
            yield outcome


def _index(registry: Registry, foreigners: Iterable[Foreign]) -> None:
    """Let the registry index the repositories that it lacks."""
    names = {each.source.lower(): each for each in foreigners if each.source is not None}
    for each in names.values():
        assert each.source is not None
        with suppress(MdrError):  # what is found by name is of no interest here
            registry.resolve(_guess(each.source, each.name))


def _meant(
    foreign: Foreign,
    found: Mapping[str, Sha256],
    answers: Mapping[Sha256, tuple[Resolved, ...]],
) -> _Meant | Unmatched:
    if not found:
        return Unmatched(
            name=foreign.name, why="its files are not on disk, so there is no content to match"
        )
    digests = list(dict.fromkeys(found.values()))
    for digest in digests:
        resolved = _best(answers.get(digest, ()), foreign)
        if resolved is not None:
            here = tuple(place for place, other in found.items() if other == digest)
            return _Meant(foreign=foreign, resolved=resolved, places=here)
    return Unmatched(
        name=foreign.name,
        why=f"no version in the registry has these bytes (sha256:{digests[0]}); edited, or not indexed",
    )


def _on_disk(base: Path, foreign: Foreign) -> dict[str, Sha256]:
    """Hash the candidates that exist as regular files; places on a file system without case twice."""
    found: dict[str, Sha256] = {}
    for place in foreign.places:
        path = base / place
        with suppress(OSError):
            linked = path.is_symlink() or path.parent.is_symlink()  # another tool's view of a copy
            if not linked and path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
                found[place] = sha256(path.read_bytes())
    return found


def _guess(source: str, name: str) -> Reference:
    return Reference(host="github.com", repository=source, name=name, path=None, selector=Latest())


def _best(answers: tuple[Resolved, ...], foreign: Foreign) -> Resolved | None:
    """Prefer the repository that the lock names, then the name, then the registry's order."""
    source = (foreign.source or "").lower()

    def rank(resolved: Resolved) -> tuple[bool, bool]:
        artifact = resolved.artifact
        return artifact.repository.lower() != source, artifact.name.lower() != foreign.name.lower()

    return min(answers, key=rank, default=None)


def _entry(
    meant: _Meant, file: bytes | MdrError | None, targets: tuple[Target, ...]
) -> Matched | Unmatched:
    """Make the entry, graded by the file's own bytes."""
    artifact = meant.resolved.artifact
    asked = Reference(
        host=artifact.host,
        repository=artifact.repository,
        name=artifact.name,
        path=None,
        selector=Latest(),
    )

    def read(_: Sha256) -> bytes | None:
        if isinstance(file, MdrError):
            raise file
        return file

    name = meant.foreign.name
    try:
        entry = entry_from(meant.resolved, asked, (), Pin.LABEL)
        entry = graded(entry, judge(entry, verified_blob(read, entry.sha256, entry.ref)))
        usable = {target for target in targets if _takes(entry, target)}
        return Matched(name=name, entry=replace(entry, targets=tuple(sorted(usable))))
    except MdrError as error:
        return Unmatched(name=name, why=error.message)


def _takes(entry: Entry, target: Target) -> bool:
    try:
        relative_place(entry, target)
    except Refusal:
        return False
    return True


def _targets(workspace: Workspace, base: Path, places: tuple[str, ...]) -> tuple[Target, ...]:
    """Return the targets that mean the folders in which the files were found."""
    roots = workspace.roots
    scopes = [s for s in Scope if roots.root(s) == base.resolve()]
    found: list[Target] = []
    for place in places:
        folder = place.rpartition("/")[0].rpartition("/")[0]
        for scope in scopes:
            name = next((a.name for a in AGENTS if _skills_folder(a, scope) == folder), None)
            if name is not None:
                found.append(Target(scope=scope, agent=name))
                break
    return tuple(found)


def _skills_folder(agent: Any, scope: Scope) -> str | None:
    place = agent.place(Kind.SKILL, "SKILL.md")
    folder: str | None = place.project if scope is Scope.PROJECT else place.user
    return folder
