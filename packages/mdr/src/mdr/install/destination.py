"""From an entry's targets to the places on this machine, and the checks that keep writes inside.

Roots are resolved once (a home may itself be a link); below them nothing is followed out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Kind
from mdr.errors import Refusal, UsageError
from mdr.install.agents import BY_NAME
from mdr.install.lock import LOCK_NAME, Scope, Target
from mdr.install.portable import fold, path_problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdr.install.lock import Entry

_A: Final = {
    Kind.SKILL: "a skill",
    Kind.INSTRUCTIONS: "an instructions file",
    Kind.RULE: "a rule",
    Kind.PROMPT: "a prompt",
    Kind.AGENT: "an agent file",
    Kind.COMMAND: "a command",
}
_SIGN: Final = {Scope.PROJECT: "", Scope.USER: "~/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The two folders that scopes stand for, resolved."""

    project: Path
    home: Path

    def root(self, scope: Scope) -> Path:
        """Return the folder of a scope."""
        return self.project if scope is Scope.PROJECT else self.home

    @property
    def lock_path(self) -> Path:
        """``mdr.lock`` of the project."""
        return self.project / LOCK_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One place to which one entry goes; several agents may share it."""

    entry: Entry
    targets: tuple[Target, ...]
    """Every target of the entry that means this place."""
    scope: Scope
    relative: str
    """Path below the root, ``/`` as separator: a folder for a skill, a file for other kinds."""
    root: Path

    @property
    def path(self) -> Path:
        """The place on this machine."""
        return self.root / self.relative

    @property
    def shown(self) -> str:
        """The place as people and documents see it: relative, ``~/`` for the home folder."""
        return _SIGN[self.scope] + self.relative

    @property
    def is_folder(self) -> bool:
        """Whether a whole folder is installed."""
        return self.entry.kind is Kind.SKILL

    def shown_file(self, path: str) -> str:
        """The place of one file of the artifact, as people see it."""
        return f"{self.shown}/{path}" if self.is_folder else self.shown


def find_roots() -> Roots:
    """Read the working directory and the home folder, each resolved once.

    Raises:
        mdr.errors.UsageError: no-home when the system knows no home folder.
    """
    try:
        home = Path.home().resolve()
    except (RuntimeError, OSError) as error:
        raise UsageError("no-home", f"no home folder: {error}", hint="set HOME") from error
    return Roots(project=Path.cwd().resolve(), home=home)


def destinations(entry: Entry, roots: Roots) -> tuple[Destination, ...]:
    """Return the places of an entry, one each even when several agents share a folder.

    Raises:
        mdr.errors.Refusal: format-mismatch or no-place; see :func:`relative_place`.
    """
    found: dict[tuple[Scope, str], list[Target]] = {}
    for target in entry.targets:
        key = (target.scope, relative_place(entry, target))
        found.setdefault(key, []).append(target)
    return tuple(
        Destination(
            entry=entry,
            targets=tuple(targets),
            scope=scope,
            relative=relative,
            root=roots.root(scope),
        )
        for (scope, relative), targets in found.items()
    )


def relative_place(entry: Entry, target: Target) -> str:
    """Return where an entry goes below the root of a target's scope.

    Raises:
        mdr.errors.Refusal: no-place when the agent has no folder for this kind and scope;
            format-mismatch when it has one for files of another form, since nothing is converted;
            unportable-path when the name cannot exist on every system.
    """
    agent = BY_NAME[target.agent]
    place = agent.place(entry.kind, entry.file_name)
    if place is None:
        forms = agent.forms(entry.kind)
        if not forms:
            raise _no_place(entry, target, f"{agent.title} has no place for {_A[entry.kind]}")
        taken = f"{agent.title} takes {_A[entry.kind]} as {' or '.join(forms)}"
        takers = _takers(entry)
        raise Refusal(
            "format-mismatch",
            f"{taken}, not as {entry.file_name}",
            hint=f"mdr copies bytes and never converts; {_offer(takers)}",
            data={
                "agent": agent.name,
                "forms": list(forms),
                "file": entry.file_name,
                "agents": takers,
            },
        )
    folder = place.project if target.scope is Scope.PROJECT else place.user
    if folder is None:
        raise _no_place(entry, target, f"{agent.title} has no {target.scope} folder for this file")
    name = entry.name if entry.kind is Kind.SKILL else entry.file_name
    problem = path_problem(name)
    if problem:
        raise Refusal("unportable-path", problem.message, data={"reason": problem.reason})
    return f"{folder}/{name}" if folder else name


def destination_keys(entry: Entry, targets: Iterable[Target]) -> frozenset[str]:
    """Return one key for each place, equal when two systems' file systems may take them for one.

    Targets without a place are left out.
    """
    keys = set()
    for target in targets:
        try:
            keys.add(f"{target.scope}:{fold(relative_place(entry, target))}")
        except Refusal:
            continue
    return frozenset(keys)


def real_parent(destination: Destination) -> Path:
    """Return the folder that will hold the destination, links resolved, and make sure it is inside.

    Raises:
        mdr.errors.Refusal: outside-root when a link leads out of the project or home folder;
            not-a-folder when something else stands where a folder must be.
    """
    parent = destination.path.parent
    real = Path(os.path.realpath(parent))
    root = destination.root
    if real != root and root not in real.parents:
        raise Refusal(
            "outside-root",
            f"{destination.shown} leads out of {root} through a symbolic link",
            hint="mdr never writes through a link that leaves the root; install in the real place",
            data={"path": destination.shown},
        )
    existing = real
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise Refusal(
            "not-a-folder",
            f"{existing.name} is in the way: a folder must be there for {destination.shown}",
            data={"path": destination.shown},
        )
    return real


def _no_place(entry: Entry, target: Target, message: str) -> Refusal:
    takers = _takers(entry)
    data = {"target": str(target), "agents": takers}
    return Refusal("no-place", message, hint=_offer(takers), data=data)


def _takers(entry: Entry) -> list[str]:
    return [name for name, agent in BY_NAME.items() if agent.place(entry.kind, entry.file_name)]


def _offer(takers: list[str]) -> str:
    return f"agents that take it (--to): {', '.join(takers)}" if takers else "no agent takes it"
