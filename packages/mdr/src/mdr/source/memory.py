"""A source without git: a line of commits given as values. For tests and for planning tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mdr.errors import SourceError
from mdr.source.types import Change, Commit, Head, Oid, Rename, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """A first-parent line, oldest first, with the blobs it names."""

    steps: tuple[Step, ...]
    blobs: Mapping[Oid, bytes]
    moved: tuple[Rename, ...] = ()
    branch: str | None = "main"
    shallow: frozenset[Oid] = field(default=frozenset())

    def head(self) -> Head:
        """Return the last commit."""
        if not self.steps:
            raise SourceError("source-empty", "the repository has no commit")
        return Head(commit=self.steps[-1][0].oid, branch=self.branch)

    def history(self, tip: Oid) -> Iterator[Step]:
        """Yield the steps up to ``tip``."""
        if all(commit.oid != tip for commit, _ in self.steps):
            raise SourceError("source-unreadable", f"there is no commit {tip}")
        for commit, changes in self.steps:
            yield commit, changes
            if commit.oid == tip:
                return

    def renames(self, commits: Sequence[Oid]) -> Sequence[Rename]:
        """Return the given renames of ``commits``."""
        wanted = set(commits)
        return [move for move in self.moved if move.commit in wanted]

    def sizes(self, oids: Sequence[Oid]) -> dict[Oid, int | None]:
        """Return the length of each blob."""
        return {oid: len(self.blobs[oid]) if oid in self.blobs else None for oid in oids}

    def read(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        """Yield blobs in the order given."""
        for oid in oids:
            yield oid, self.blobs[oid]


def step(oid: Oid, time: int, *changes: Change, parents: tuple[Oid, ...] = ()) -> Step:
    """Write one step of a :class:`MemorySource`."""
    return Commit(oid, time, parents), changes
