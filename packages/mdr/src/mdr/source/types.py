"""What a source offers to the later stages: a line of commits, what each changed, and bytes.

A source is read from git's object database and nowhere else: no checkout, no filters, no newline
conversion. Paths are text with ``surrogateescape``, so that names which are not UTF-8 survive until
they are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Oid = str
"""Hexadecimal name of a git object: 40 digits, or 64 in a SHA-256 repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where the default branch of a source stands."""

    commit: Oid
    branch: str | None
    """Short name, ``None`` for a detached HEAD."""


class Commit(NamedTuple):
    """One commit on the first-parent line."""

    oid: Oid
    time: int
    """Committer time, seconds since 1970 UTC, as the commit says; may be absurd."""
    parents: tuple[Oid, ...]


class Change(NamedTuple):
    """How one path differs from the commit's first parent."""

    path: str
    mode: str
    """``000000`` when the path is gone; otherwise git's mode, ``160000`` for anything odd."""
    oid: Oid
    added: bool
    """Whether the first parent had nothing at this path."""

    @property
    def deleted(self) -> bool:
        """Whether the path is gone."""
        return self.mode == "000000"


class Rename(NamedTuple):
    """Git's guess that a file moved, with at least 60 of 100 similarity."""

    commit: Oid
    old: str
    new: str


Step = tuple[Commit, Sequence[Change]]


class Source(Protocol):
    """Read side of one repository at one moment. Implementations must be picklable."""

    @property
    def shallow(self) -> frozenset[Oid]:
        """Commits whose parents are cut away; what they add may be older than they are."""
        ...

    def head(self) -> Head:
        """Return the tip of the default branch.

        Raises:
            mdr.errors.SourceError: source-empty, source-unreadable.
        """
        ...

    def history(self, tip: Oid) -> Iterator[Step]:
        """Yield the first-parent line of ``tip``, oldest first, each with its changes.

        Raises:
            mdr.errors.SourceError: source-unreadable, source-too-large.
        """
        ...

    def renames(self, commits: Sequence[Oid]) -> Sequence[Rename]:
        """Return the renames against the first parent in ``commits``, in the order given."""
        ...

    def sizes(self, oids: Sequence[Oid]) -> dict[Oid, int | None]:
        """Return the size of each blob, ``None`` where this source does not hold it as a blob."""
        ...

    def read(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        """Yield the bytes of blobs that :meth:`sizes` knows, in the order given."""
        ...
