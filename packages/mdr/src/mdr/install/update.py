"""``mdr update``: move labels, never hashes, and only after showing what changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mdr.errors import BadReference, PolicyError, Refusal
from mdr.install.candidate import entry_from, reference_to, with_entry
from mdr.install.installer import Report, Request, install
from mdr.install.judge import graded, judge, regrade
from mdr.install.lock import Pin
from mdr.install.outdated import Newer, locked_version, newer
from mdr.install.policy import check_grade, check_license, check_owner
from mdr.reference.types import Label
from mdr.registry.capability import gained
from mdr.registry.compare import Comparison, compare_resolved
from mdr.registry.documents import version_document
from mdr.registry.interface import Resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdr.install.fetch import Fetcher
    from mdr.install.lock import Entry
    from mdr.install.policy import Policy
    from mdr.install.workspace import Workspace
    from mdr.registry.interface import Registry
    from mdr.version.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One entry that can move, and what that changes."""

    before: Entry
    after: Entry
    comparison: Comparison
    gained: tuple[str, ...]
    """What the newer version lets an agent do that the older one did not, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One entry that does not move, and why."""

    ref: str
    why: str
    refused: bool
    """Whether a policy or gate said no, which makes the exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What must hold for a move."""

    policy: Policy
    asked_grade: str | None = None
    no_new_capability: bool = False
    agree: Callable[[Move], bool] | None = None
    """Asks the person; ``None`` agrees."""


def plan(
    registry: Registry, entries: Sequence[Entry], gate: Gate, fetcher: Fetcher
) -> tuple[tuple[Move, ...], tuple[Held, ...]]:
    """Find out which entries move. Nothing is written.

    Raises:
        mdr.errors.MdrError: The registry or a host failed, or bytes were not what they should be.
    """
    moves: list[Move] = []
    held: list[Held] = []
    for entry in entries:
        outcome = _consider(entry, registry, gate, fetcher)
        if isinstance(outcome, Move):
            moves.append(outcome)
        elif outcome is not None:
            held.append(outcome)
    return tuple(moves), tuple(held)


def apply(workspace: Workspace, moves: Sequence[Move], fetcher: Fetcher, *, force: bool) -> Report:
    """Write the moved entries' bytes, all or none, then the lock.

    Raises:
        mdr.errors.MdrError: lock-changed, target-not-ours and the other codes of an installation.
    """
    with workspace.held([move.after for move in moves]):
        lock = workspace.lock()
        for move in moves:
            if move.before not in lock.entries:
                raise Refusal(
                    "lock-changed",
                    f"{move.before.ref} was changed in mdr.lock meanwhile",
                    hint="nothing was written; run `mdr update` again",
                    data={"ref": move.before.ref},
                )
            lock = with_entry(lock, move.after)
        request = Request(
            entries=tuple(move.after for move in moves),
            roots=workspace.roots,
            data=workspace.settings.data,
            force=force,
            earlier={move.before.identity: move.before for move in moves},
        )
        report = install(request, fetcher, regrade)
        if report.failed:
            raise report.failed[0].error
        workspace.write(lock)
    return report


def move_document(move: Move) -> dict[str, Any]:
    """Return one element of ``updated``."""
    return {
        "ref": move.after.ref,
        "from": version_document(move.comparison.before),
        "to": version_document(move.comparison.after),
        "semantic": move.comparison.semantic.to_document(),
    }


def _consider(entry: Entry, registry: Registry, gate: Gate, fetcher: Fetcher) -> Move | Held | None:
    try:
        found = newer(entry, registry)
    except BadReference as error:
        return Held(ref=entry.ref, why=f"not known here: {error.message}", refused=False)
    fixed = _fixed(entry, found)
    if fixed is not None or found is None:
        return fixed
    move = _move(entry, found.latest.label, registry, fetcher)
    objection = _objection(move, gate)
    if objection is not None:
        return Held(ref=entry.ref, why=objection, refused=True)
    if gate.agree is not None and not gate.agree(move):
        return Held(ref=entry.ref, why="not wanted", refused=False)
    return move


def _fixed(entry: Entry, found: Newer | None) -> Held | None:
    """Say why an entry cannot move whatever the newer version holds."""
    if entry.pin is Pin.SHA256:
        why = "pinned by sha256, which never moves"
        if found is not None and not found.folder_only:
            why += f"; {found.latest.label} is newer: `mdr add {entry.ref}@{found.latest.label}`"
        return Held(ref=entry.ref, why=why, refused=False)
    if found is not None and found.folder_only:
        why = "only files around it changed since its label; a label names one folder"
        return Held(ref=entry.ref, why=why, refused=False)
    return None


def _move(entry: Entry, label: str, registry: Registry, fetcher: Fetcher) -> Move:
    asked = reference_to(entry, Label(label=label))
    resolved = registry.resolve(asked)
    after = replace(entry_from(resolved, asked, entry.targets, Pin.LABEL), ref=entry.ref)
    failures = fetcher.gather([after])
    if failures:
        raise failures[after.identity]
    data = fetcher.read(after.sha256)
    after = graded(after, judge(after, data))
    old = Resolved(
        artifact=resolved.artifact,
        version=_old_version(entry, registry),
        files=entry.files,
        source=resolved.source,
    )
    missing = fetcher.gather([entry])  # the locked bytes, from wherever they still are
    if fetcher.get(entry.sha256) is None:
        raise missing[entry.identity]
    comparison = compare_resolved(old, resolved, fetcher.get)
    lines = gained(comparison.semantic, comparison.files, after.file_name, fetcher.get)
    return Move(before=entry, after=after, comparison=comparison, gained=lines)


def _old_version(entry: Entry, registry: Registry) -> Version:
    _, versions = registry.versions(reference_to(entry))
    return next((v for v in versions if v.label == entry.label), None) or locked_version(entry)


def _objection(move: Move, gate: Gate) -> str | None:
    after, comparison = move.after, move.comparison
    try:
        check_owner(gate.policy, after.host, after.repository, after.ref)
        check_license(gate.policy, comparison.license, after.ref)
        check_grade(gate.policy, after.grade, after.ref, gate.asked_grade)
    except PolicyError as error:
        return f"{error.message} [{error.code}]"
    if gate.no_new_capability and move.gained:
        return f"{comparison.after.label} adds capability: {'; '.join(move.gained)}"
    return None
