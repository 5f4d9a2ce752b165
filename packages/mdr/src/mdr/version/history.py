"""Replay a first-parent line into versions.

A commit that changes an artifact's file against the commit's **first parent** makes a version, a merge
commit included: on the default branch the merge is the moment at which the file changed. Commits on
merged side branches make none. A commit that changes only other files of a skill's folder makes a
folder revision of the version before it. Deleting a file ends nothing: when the path comes back, the
same artifact goes on. docs/reference/index-and-versions.md tells this to users.

The line is read twice: first to learn which paths are artifacts at any time, then to follow only those
and the folders around them. Memory is therefore bounded by what belongs to artifacts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mdr.artifact.discover import PathLimits, classify, mode_problem
from mdr.artifact.types import Artifact, Kind, Skipped
from mdr.version.drafts import DraftArtifact, DraftFile, DraftRevision, DraftVersion, Line
from mdr.version.labels import committed_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mdr.source.types import Change, Commit, Oid, Rename, Step
    from mdr.version.drafts import Snapshot

SHALLOW: Final = (
    "the clone is shallow: history before this commit is cut, so the version has no true label"
)
NO_DATE: Final = "the committer time is no date between the years 1970 and 9999"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on what one line may hold."""

    path: PathLimits = field(default_factory=PathLimits)
    folder_files: int = 4_000
    folder_revisions: int = 100
    """Kept of one version, the newest."""
    manifest_lines: int = 2_000_000
    """Of all snapshots together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """The first reading: which paths are ever artifacts."""

    artifacts: dict[str, Artifact]
    skipped: dict[str, str]
    moving: tuple[Oid, ...]
    """Commits that remove one artifact and add another: the only ones where a file can have moved."""


def discover(steps: Iterable[Step], *, host: str, repository: str, bounds: Bounds) -> Discovered:
    """Find every path that is an artifact at some time.

    Args:
        steps: The line, oldest first.
        host: Host of the repository.
        repository: ``owner/repo`` in the host's spelling.
        bounds: Limits.
    """
    artifacts: dict[str, Artifact] = {}
    skipped: dict[str, str] = {}
    moving: list[Oid] = []
    for commit, changes in steps:
        added = removed = False
        for change in changes:
            if change.path not in artifacts:
                found = classify(change.path, host=host, repository=repository, limits=bounds.path)
                if found is None:
                    continue
                if found.artifact is None:
                    skipped[change.path] = found.problem or ""
                    continue
                artifacts[change.path] = found.artifact
            added |= change.added
            removed |= change.deleted
        if added and removed:
            moving.append(commit.oid)
    return Discovered(artifacts=artifacts, skipped=skipped, moving=tuple(moving))


def replay(
    steps: Iterable[Step],
    found: Discovered,
    *,
    renames: Sequence[Rename],
    shallow: frozenset[Oid],
    bounds: Bounds,
) -> Line:
    """Follow the artifacts along the line.

    Args:
        steps: The same line again, oldest first.
        found: From :func:`discover`.
        renames: Git's guesses for ``found.moving``.
        shallow: Commits at which the history is cut.
        bounds: Limits.
    """
    walk = _Walk(found, shallow, bounds)
    count = 0
    for commit, changes in steps:
        walk.step(commit, changes)
        count += 1
    drafts = walk.drafts
    _join_renames(drafts, renames)
    skipped = {**found.skipped, **walk.skipped}
    rows = [Skipped(path=path, reason=reason) for path, reason in sorted(skipped.items())]
    with_versions = sorted(
        (draft for draft in drafts.values() if draft.versions), key=lambda each: each.artifact.path
    )
    return Line(artifacts=tuple(with_versions), skipped=tuple(rows), commits=count)


class _Walk:
    """The state between two commits of the line."""

    def __init__(self, found: Discovered, shallow: frozenset[Oid], bounds: Bounds) -> None:
        self.drafts = {path: DraftArtifact(artifact=each) for path, each in found.artifacts.items()}
        self.skipped: dict[str, str] = {}
        self._shallow = shallow
        self._bounds = bounds
        self._lines = 0
        self._folders: dict[str, dict[str, DraftFile]] = {}
        self._skills: dict[str, list[DraftArtifact]] = {}
        self._around: dict[str, tuple[str, ...]] = {}
        for draft in self.drafts.values():
            if draft.artifact.kind is Kind.SKILL:
                self._folders.setdefault(draft.artifact.folder, {})
                self._skills.setdefault(draft.artifact.folder, []).append(draft)

    def step(self, commit: Commit, changes: Sequence[Change]) -> None:
        """Apply one commit."""
        mains = [change for change in changes if change.path in self.drafts]
        touched = self._apply(changes)
        fresh = {change.path for change in mains if self._main(commit, change)}
        for folder in touched:
            for draft in self._skills[folder]:
                if draft.artifact.path not in fresh:
                    self._revise(commit, draft)

    def _apply(self, changes: Sequence[Change]) -> dict[str, None]:
        """Update the folders and return those that changed, in order."""
        touched: dict[str, None] = {}
        for change in changes:
            for folder in self._folders_around(change.path):
                inside = change.path[len(folder) + 1 :] if folder else change.path
                if change.deleted:
                    self._folders[folder].pop(inside, None)
                else:
                    self._folders[folder][inside] = DraftFile(inside, change.mode, change.oid)
                touched[folder] = None
        return touched

    def _folders_around(self, path: str) -> tuple[str, ...]:
        parent = path.rpartition("/")[0]
        known = self._around.get(parent)
        if known is None:
            segments = parent.split("/") if parent else []
            names = ["/".join(segments[:depth]) for depth in range(len(segments) + 1)]
            known = tuple(name for name in names if name in self._folders)
            self._around[parent] = known
        return known

    def _main(self, commit: Commit, change: Change) -> bool:
        """Take a change of an artifact's own file; say whether it made a version."""
        draft = self.drafts[change.path]
        draft.present = False
        if change.deleted:
            return False
        problem = self._problem(commit, change, draft)
        files: Snapshot = (DraftFile(change.path.rpartition("/")[2], change.mode, change.oid),)
        if problem is None and draft.artifact.kind is Kind.SKILL:
            files = tuple(self._folders[draft.artifact.folder].values())
            problem = self._snapshot_problem(files)
        if problem is not None:
            self.skipped[change.path] = f"{problem} (commit {commit.oid[:7]})"
            return False
        draft.present = True
        draft.versions.append(DraftVersion(commit=commit, oid=change.oid, files=files))
        return True

    def _problem(self, commit: Commit, change: Change, draft: DraftArtifact) -> str | None:
        problem = mode_problem(change.mode)
        if problem is not None:
            return problem
        if commit.oid in self._shallow:
            return SHALLOW
        if committed_at(commit.time) is None:
            return NO_DATE
        folder, _, name = change.path.rpartition("/")
        if (
            draft.artifact.kind is Kind.SKILL
            and name == "skill.md"
            and "SKILL.md" in self._folders[folder]
        ):
            return "SKILL.md in the same folder is the skill"
        return None

    def _snapshot_problem(self, files: Snapshot) -> str | None:
        if len(files) > self._bounds.folder_files:
            return f"the folder has {len(files):,} files, more than {self._bounds.folder_files:,}"
        if self._lines + len(files) > self._bounds.manifest_lines:
            return (
                f"the repository's manifests have more than {self._bounds.manifest_lines:,} lines"
            )
        self._lines += len(files)
        return None

    def _revise(self, commit: Commit, draft: DraftArtifact) -> None:
        """Note that the folder changed and the file did not."""
        if not draft.present or not draft.versions:
            return
        version = draft.versions[-1]
        files = tuple(self._folders[draft.artifact.folder].values())
        problem = NO_DATE if committed_at(commit.time) is None else self._snapshot_problem(files)
        if problem is not None:
            self.skipped[draft.artifact.path] = f"{problem} (folder at commit {commit.oid[:7]})"
            return
        if len(version.revisions) >= self._bounds.folder_revisions:
            self._lines -= len(version.revisions.popleft().files)
            version.dropped_revisions += 1
        version.revisions.append(DraftRevision(commit=commit, files=files))


def _join_renames(drafts: dict[str, DraftArtifact], renames: Sequence[Rename]) -> None:
    """Record where git says a file was before; identity stays with the path."""
    for move in renames:
        old, new = drafts.get(move.old), drafts.get(move.new)
        if old is None or new is None or old is new or old.artifact.kind is not new.artifact.kind:
            continue
        chain = [old.artifact.path, *old.previously, *new.previously]
        new.previously = tuple(path for path in dict.fromkeys(chain) if path != new.artifact.path)
