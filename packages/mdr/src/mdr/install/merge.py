"""Merge two locks that grew from one, entry by entry, so that a git conflict needs no hand editing.

Line merges of a lock can mix the hash of one side with the label of the other. Here a whole entry is
the unit; only its targets, which are a set, are merged inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from mdr.install.lock import Entry, Lock, Target, format_lock, in_lock_order
from mdr.install.lock_read import parse_lock

if TYPE_CHECKING:
    from collections.abc import Mapping


class Prefer(StrEnum):
    """What to take where both sides changed the same entry."""

    OURS = "ours"
    THEIRS = "theirs"
    NEWEST = "newest"
    """The later label; equal days are decided by nothing, and stay a conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The merged lock, and the entries that both sides changed differently."""

    lock: Lock
    conflicts: tuple[str, ...]
    """Refs; the lock lacks a decision for them."""


def merge(base: Lock, ours: Lock, theirs: Lock, prefer: Prefer | None = None) -> Merged:
    """Merge three ways.

    Args:
        base: What both grew from; empty when there was none.
        ours: One side.
        theirs: The other side.
        prefer: How to decide where both changed one entry; ``None`` leaves a conflict.

    Raises:
        mdr.errors.LockError: lock-collision when the sides added different artifacts for one place.
    """
    sides = [_by_identity(lock) for lock in (base, ours, theirs)]
    entries: list[Entry] = []
    conflicts: list[str] = []
    for identity in sorted({*sides[0], *sides[1], *sides[2]}):
        old, one, two = (side.get(identity) for side in sides)
        clean, entry = _one(old, one, two)
        if not clean:
            clean, entry = _decide(one, two, prefer)
        if not clean:
            known = one or two
            conflicts += [known.ref] if known else []
        elif entry is not None:
            entries.append(entry)
    lock = parse_lock(format_lock(Lock(entries=in_lock_order(entries))))
    return Merged(lock=lock, conflicts=tuple(sorted(conflicts)))


def _by_identity(lock: Lock) -> Mapping[tuple[str, str, str], Entry]:
    return {entry.identity: entry for entry in lock.entries}


def _one(old: Entry | None, one: Entry | None, two: Entry | None) -> tuple[bool, Entry | None]:
    """Return (decided, entry or ``None`` for removed)."""
    if two in {one, old}:
        return True, one
    if one == old:
        return True, two
    if one is None or two is None:
        return False, None
    targets = _targets(old, one, two)
    bare = [None if e is None else replace(e, targets=()) for e in (old, one, two)]
    if bare[1] == bare[2] or bare[2] == bare[0]:
        return True, replace(one, targets=targets)
    if bare[1] == bare[0]:
        return True, replace(two, targets=targets)
    return False, None


def _decide(
    one: Entry | None, two: Entry | None, prefer: Prefer | None
) -> tuple[bool, Entry | None]:
    match prefer:
        case Prefer.OURS:
            return True, one
        case Prefer.THEIRS:
            return True, two
        case Prefer.NEWEST if one is not None and two is not None:
            days = (one.label[:12], two.label[:12])
            if days[0] != days[1]:
                newest = one if days[0] > days[1] else two
                both = tuple(sorted({*one.targets, *two.targets}))
                return True, replace(newest, targets=both)
    return False, None


def _targets(old: Entry | None, one: Entry, two: Entry) -> tuple[Target, ...]:
    before = set() if old is None else set(old.targets)
    added = (set(one.targets) | set(two.targets)) - before
    kept = before & set(one.targets) & set(two.targets)
    return tuple(sorted(added | kept))
