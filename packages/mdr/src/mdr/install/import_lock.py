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
    registry = workspace.registry()
    base = base_folder(path)
    matched: list[Matched] = []
    unmatched: list[Unmatched] = []
    for foreign in read_foreign(path):
        outcome = _match(workspace, registry, base, foreign, targets)
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


def _match(
    workspace: Workspace,
    registry: Registry,
    base: Path,
    foreign: Foreign,
    targets: tuple[Target, ...],
) -> Matched | Unmatched:
    found = _on_disk(base, foreign) or dict(foreign.stated)
    if not found:
        return Unmatched(
            name=foreign.name, why="its files are not on disk, so there is no content to match"
        )
    digests = list(dict.fromkeys(found.values()))
    if foreign.source is not None:
        with suppress(MdrError):  # only makes the registry index the repository
            registry.resolve(_guess(foreign.source, foreign.name))
    answers = registry.find_by_content(digests)
    for digest in digests:
        resolved = _best(answers.get(digest, ()), foreign)
        if resolved is not None:
            here = tuple(place for place, other in found.items() if other == digest)
            places = _targets(workspace, base, here) or targets
            return _entry(registry, resolved, foreign, places)
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
    registry: Registry,
    resolved: Resolved,
    foreign: Foreign,
    targets: tuple[Target, ...],
) -> Matched | Unmatched:
    artifact = resolved.artifact
    asked = Reference(
        host=artifact.host,
        repository=artifact.repository,
        name=artifact.name,
        path=None,
        selector=Latest(),
    )
    try:
        entry = entry_from(resolved, asked, (), Pin.LABEL)
        data = verified_blob(registry.blob, entry.sha256, entry.ref)
        entry = graded(entry, judge(entry, data))
        usable = tuple(target for target in targets if _takes(entry, target))
        return Matched(name=foreign.name, entry=replace(entry, targets=tuple(sorted(set(usable)))))
    except MdrError as error:
        return Unmatched(name=foreign.name, why=error.message)


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
