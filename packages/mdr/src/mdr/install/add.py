"""``mdr add``: resolve, fetch, judge, install, lock. In that order; nothing is written before the last two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mdr.artifact.license import declared_license
from mdr.errors import BadReference, LockError, Refusal, UsageError
from mdr.install.agents import BY_NAME, SHARED_AGENT, detect
from mdr.install.candidate import entry_from, merged_targets, with_entry
from mdr.install.destination import destinations, relative_place
from mdr.install.installer import Request, install
from mdr.install.judge import document, graded, judge, regrade
from mdr.install.links import expand_links
from mdr.install.lock import Scope, Target
from mdr.install.policy import check_grade, check_license, check_owner
from mdr.install.refresh import refresh
from mdr.install.workspace import as_refusal
from mdr.reference.types import Latest
from mdr.source.locate import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdr.audit.types import AuditResult
    from mdr.install.fetch import Fetcher
    from mdr.install.installer import Report
    from mdr.install.lock import Entry
    from mdr.install.workspace import Workspace
    from mdr.reference.types import Reference
    from mdr.registry.interface import Registry, Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that may be installed: fetched, hashed and graded here, written nowhere yet."""

    entry: Entry
    """With our own grade."""
    resolved: Resolved
    verdict: AuditResult
    fetcher: Fetcher
    """Holds the verified bytes."""
    warnings: tuple[str, ...] = ()
    """What to tell the person, such as a host that could not be asked for newer versions."""

    @property
    def bytes_in_all(self) -> int:
        """Size of every file together."""
        return sum(file.size for file in self.entry.files)

    @property
    def license(self) -> tuple[str | None, bool]:
        """The license, and whether only the frontmatter says so, because the host says none."""
        stated = self.resolved.source.license
        if stated is not None:
            return stated, False
        declared = declared_license(self.fetcher.read(self.entry.sha256))
        return declared, declared is not None

    def audit_document(self) -> dict[str, Any]:
        """Return the AUDIT document of the named file, and of the folder where there is one."""
        return document(self.entry, self.verdict, self.fetcher.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What ``add`` did."""

    entry: Entry
    replaced: Entry | None
    written: tuple[str, ...]
    """Every file of the artifact at every place, as people see paths."""
    report: Report


def choose_targets(
    workspace: Workspace, named: Sequence[str], *, user: bool
) -> tuple[tuple[Target, ...], bool]:
    """Return where to install, and whether that was a guess because no agent was found.

    Args:
        workspace: Project and home.
        named: Agents from ``--to``; empty means those that are present.
        user: Install for the person instead of the project.

    Raises:
        mdr.errors.UsageError: unknown-agent.
    """
    for name in named:
        if name not in BY_NAME:
            import difflib

            near = difflib.get_close_matches(name, BY_NAME, n=1)
            raise UsageError(
                "unknown-agent",
                f"there is no agent {name!r} in the table",
                hint=f"did you mean {near[0]}?" if near else f"agents: {', '.join(BY_NAME)}",
                data={"agent": name, "agents": list(BY_NAME)},
            )
    found = tuple(named) or detect(workspace.roots.project, workspace.roots.home)
    scope = Scope.USER if user else Scope.PROJECT
    agents = found or (SHARED_AGENT,)
    return tuple(Target(scope=scope, agent=agent) for agent in agents), not found


def prepare(
    workspace: Workspace, reference: Reference, targets: Sequence[Target], *, guessed: bool
) -> Candidate:
    """Resolve a reference, get its bytes and judge them.

    Args:
        workspace: Settings and roots.
        reference: What to add.
        targets: Where to.
        guessed: Whether the targets were detected, so that those which cannot take this kind of file
            are left out instead of refused.

    Raises:
        mdr.errors.MdrError: not-found, ambiguous-reference, bytes-not-found, hash-mismatch,
            grade-mismatch, registry-answer, no-place, format-mismatch, unportable-path.
    """
    registry = workspace.registry()
    resolved, warnings = _resolve(registry, reference)
    bare = entry_from(resolved, reference, ())
    chosen = (_usable(bare, targets) if guessed else ()) or targets
    entry = replace(bare, targets=tuple(sorted(set(chosen))))
    destinations(entry, workspace.roots)
    fetcher = workspace.fetcher_of(registry)
    failures = fetcher.gather([entry])
    if failures:
        raise failures[entry.identity]
    expand_links(entry.files, fetcher.get)
    verdict = judge(entry, fetcher.read(entry.sha256))
    return Candidate(
        entry=graded(entry, verdict),
        resolved=resolved,
        verdict=verdict,
        fetcher=fetcher,
        warnings=(*warnings, *_elsewhere(resolved)),
    )


def _elsewhere(resolved: Resolved) -> tuple[str, ...]:
    """Say what other machines need when the registry has read the repository from a disk."""
    artifact = resolved.artifact
    if not resolved.source.on_disk:
        return ()
    host = (
        ""
        if artifact.host == LOCAL
        else f", or {artifact.host}/{artifact.repository} must hold commit {resolved.version.commit[:7]}"
    )
    return (f"indexed from a disk: other machines need this registry to install it{host}",)


def _resolve(registry: Registry, reference: Reference) -> tuple[Resolved, tuple[str, ...]]:
    """Resolve, asking the host first for the newest label, and again for a version not known yet."""
    where = [(reference.host, reference.repository)]
    if isinstance(reference.selector, Latest):
        warnings = refresh(registry, where)
        return registry.resolve(reference), warnings
    try:
        return registry.resolve(reference), ()
    except BadReference as error:
        if error.code != "not-found":
            raise
    warnings = refresh(registry, where)
    return registry.resolve(reference), warnings


def check_policy(workspace: Workspace, candidate: Candidate, *, asked: str | None) -> None:
    """Refuse what the policy does not allow.

    Raises:
        mdr.errors.PolicyError: owner-refused, license-refused, grade-refused.
    """
    policy, entry = workspace.policy(), candidate.entry
    check_owner(policy, entry.host, entry.repository, entry.ref)
    check_license(policy, candidate.license[0], entry.ref)
    check_grade(policy, entry.grade, entry.ref, asked)


def apply(workspace: Workspace, candidate: Candidate, *, force: bool) -> Added:
    """Write the bytes, then the lock.

    Raises:
        mdr.errors.MdrError: target-not-ours, target-taken, outside-root, place-not-written and the
            codes of the lock.
    """
    with workspace.held([candidate.entry]):
        lock = workspace.lock_or_new()
        earlier = next((e for e in lock.entries if e.identity == candidate.entry.identity), None)
        entry = merged_targets(candidate.entry, earlier)
        try:
            updated = with_entry(lock, entry)
        except LockError as error:
            raise as_refusal(error) from error
        request = Request(
            entries=(entry,),
            roots=workspace.roots,
            data=workspace.settings.data,
            force=force,
            earlier={} if earlier is None else {earlier.identity: earlier},
        )
        report = install(request, candidate.fetcher, regrade)
        if report.failed:
            raise report.failed[0].error
        workspace.write(updated)
    replaced = earlier if earlier is not None and earlier != entry else None
    return Added(
        entry=entry, replaced=replaced, written=_written(workspace, candidate, entry), report=report
    )


def _usable(entry: Entry, targets: Sequence[Target]) -> tuple[Target, ...]:
    """Leave out detected agents that have no place for this file, unless none would be left."""
    usable = []
    for target in targets:
        try:
            relative_place(entry, target)
        except Refusal:
            continue
        usable.append(target)
    return tuple(usable)


def _written(workspace: Workspace, candidate: Candidate, entry: Entry) -> tuple[str, ...]:
    files = expand_links(entry.files, candidate.fetcher.get)
    return tuple(
        place.shown_file(file.path)
        for place in destinations(entry, workspace.roots)
        for file in files
    )
