"""Laws of the three-way merge."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from registry_simulator import lock_entry as entry

from mdr.install.lock import Entry, Lock, Scope, Target
from mdr.install.merge import Prefer, merge

TARGETS = [Target(scope=Scope.PROJECT, agent=name) for name in ("claude", "cursor", "kiro")]


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    found: list[Entry] = []
    for name in draw(st.sets(st.sampled_from(["a", "b", "c"]))):
        digit = draw(st.sampled_from("123"))
        day = draw(st.sampled_from(["20260101", "20260202"]))
        targets = tuple(sorted(draw(st.sets(st.sampled_from(TARGETS), min_size=1))))
        commit = "d36ff7" + digit + "0" * 33
        found.append(
            replace(entry(name), label=f"git:{day}.{commit[:7]}", commit=commit, targets=targets)
        )
    return (
        Lock().put(found[0])
        if len(found) == 1
        else Lock(entries=tuple(sorted(found, key=lambda e: e.ref)))
    )


@given(locks(), locks())
def test_a_side_that_did_not_change_gives_way(base: Lock, other: Lock) -> None:
    for merged in (merge(base, base, other), merge(base, other, base)):
        assert merged.lock == other
        assert merged.conflicts == ()


@given(locks(), locks())
def test_equal_sides_are_the_result(base: Lock, side: Lock) -> None:
    assert merge(base, side, side).lock == side


@given(locks(), locks(), locks())
def test_the_sides_may_be_swapped(base: Lock, ours: Lock, theirs: Lock) -> None:
    one, two = merge(base, ours, theirs), merge(base, theirs, ours)
    assert one == two


@given(locks(), locks(), locks())
def test_nothing_is_invented_and_nothing_is_lost_silently(
    base: Lock, ours: Lock, theirs: Lock
) -> None:
    merged = merge(base, ours, theirs)
    versions = {(e.ref, e.commit, e.label) for side in (base, ours, theirs) for e in side.entries}
    assert {(e.ref, e.commit, e.label) for e in merged.lock.entries} <= versions
    kept = {e.ref for e in merged.lock.entries} | set(merged.conflicts)
    both = {e.ref for e in ours.entries} & {e.ref for e in theirs.entries}
    assert both <= kept


@given(locks(), locks(), locks(), st.sampled_from([Prefer.OURS, Prefer.THEIRS]))
def test_a_preference_leaves_no_conflict(
    base: Lock, ours: Lock, theirs: Lock, prefer: Prefer
) -> None:
    assert merge(base, ours, theirs, prefer).conflicts == ()
