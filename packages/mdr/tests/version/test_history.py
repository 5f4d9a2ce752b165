"""Replay: which commits make versions, which make folder revisions, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdr.artifact.discover import PathLimits
from mdr.source.memory import MemorySource, step
from mdr.source.types import Change, Rename
from mdr.version.history import Bounds, discover, replay

if TYPE_CHECKING:
    from mdr.source.types import Step
    from mdr.version.drafts import DraftArtifact, Line

GONE = "0" * 40


def put(path: str, oid: str, *, mode: str = "100644", added: bool = False) -> Change:
    return Change(path, mode, oid, added)


def drop(path: str) -> Change:
    return Change(path, "000000", GONE, added=False)


def run(
    *steps: Step,
    bounds: Bounds | None = None,
    moved: tuple[Rename, ...] = (),
    shallow: frozenset[str] = frozenset(),
) -> Line:
    source = MemorySource(steps=steps, blobs={}, moved=moved)
    bounds = bounds or Bounds()
    tip = source.head().commit
    found = discover(source.history(tip), host="h.org", repository="o/r", bounds=bounds)
    return replay(
        source.history(tip),
        found,
        renames=source.renames(found.moving),
        shallow=shallow,
        bounds=bounds,
    )


def only(line: Line) -> DraftArtifact:
    (draft,) = line.artifacts
    return draft


def test_each_change_of_the_file_is_a_version() -> None:
    draft = only(
        run(
            step("c1", 10, put("a/SKILL.md", "x", added=True)),
            step("c2", 20),
            step("c3", 30, put("a/SKILL.md", "y")),
        )
    )
    assert [(v.commit.oid, v.oid) for v in draft.versions] == [("c1", "x"), ("c3", "y")]
    assert draft.present


def test_topology_goes_before_the_clock() -> None:
    draft = only(
        run(
            step("c1", 99, put("a/SKILL.md", "x", added=True)),
            step("c2", 5, put("a/SKILL.md", "y")),
        )
    )
    assert [v.commit.oid for v in draft.versions] == ["c1", "c2"]


def test_a_change_beside_the_file_is_a_folder_revision_of_the_version_before() -> None:
    draft = only(
        run(
            step("c1", 1, put("a/SKILL.md", "x", added=True), put("a/run.py", "p", added=True)),
            step("c2", 2, put("a/run.py", "q")),
            step("c3", 3, put("other/run.py", "z", added=True)),
            step("c4", 4, put("a/SKILL.md", "y"), put("a/run.py", "r")),
            step("c5", 5, drop("a/run.py")),
        )
    )
    first, second = draft.versions
    assert {(f.path, f.oid) for f in first.files} == {("SKILL.md", "x"), ("run.py", "p")}
    assert [r.commit.oid for r in first.revisions] == ["c2"]
    assert {(f.path, f.oid) for f in second.files} == {("SKILL.md", "y"), ("run.py", "r")}
    assert [(r.commit.oid, [f.path for f in r.files]) for r in second.revisions] == [
        ("c5", ["SKILL.md"])
    ]


def test_the_folder_may_be_older_than_the_skill() -> None:
    draft = only(
        run(
            step("c1", 1, put("a/run.py", "p", added=True)),
            step("c2", 2, put("a/SKILL.md", "x", added=True)),
        )
    )
    assert {f.path for f in draft.versions[0].files} == {"SKILL.md", "run.py"}
    assert not draft.versions[0].revisions


def test_only_skills_have_a_folder() -> None:
    draft = only(
        run(
            step("c1", 1, put("AGENTS.md", "x", added=True), put("b.py", "p", added=True)),
            step("c2", 2, put("b.py", "q")),
        )
    )
    assert [f.path for f in draft.versions[0].files] == ["AGENTS.md"]
    assert not draft.versions[0].revisions


def test_a_skill_inside_a_skill_belongs_to_both() -> None:
    line = run(
        step("c1", 1, put("SKILL.md", "x", added=True), put("in/SKILL.md", "y", added=True)),
        step("c2", 2, put("in/SKILL.md", "z")),
    )
    outer, inner = line.artifacts
    assert (outer.artifact.name, inner.artifact.name) == ("r", "in")
    assert [r.commit.oid for r in outer.versions[0].revisions] == ["c2"]
    assert [v.commit.oid for v in inner.versions] == ["c1", "c2"]


def test_deleting_and_adding_again_keeps_the_identity() -> None:
    draft = only(
        run(
            step("c1", 1, put("a/SKILL.md", "x", added=True)),
            step("c2", 2, drop("a/SKILL.md")),
            step("c3", 3, put("a/run.py", "p", added=True)),
            step("c4", 4, put("a/SKILL.md", "x", added=True)),
        )
    )
    assert [v.commit.oid for v in draft.versions] == ["c1", "c4"]
    assert not draft.versions[0].revisions


def test_a_deleted_file_is_not_present() -> None:
    draft = only(
        run(step("c1", 1, put("a/SKILL.md", "x", added=True)), step("c2", 2, drop("a/SKILL.md")))
    )
    assert not draft.present
    assert len(draft.versions) == 1


def test_a_move_is_remembered_and_makes_another_artifact() -> None:
    line = run(
        step("c1", 1, put("old/SKILL.md", "x", added=True)),
        step("c2", 2, drop("old/SKILL.md"), put("mid/SKILL.md", "x", added=True)),
        step("c3", 3, drop("mid/SKILL.md"), put("new/SKILL.md", "y", added=True)),
        moved=(
            Rename("c2", "old/SKILL.md", "mid/SKILL.md"),
            Rename("c3", "mid/SKILL.md", "new/SKILL.md"),
        ),
    )
    told = {draft.artifact.path: draft.previously for draft in line.artifacts}
    assert told == {
        "old/SKILL.md": (),
        "mid/SKILL.md": ("old/SKILL.md",),
        "new/SKILL.md": ("mid/SKILL.md", "old/SKILL.md"),
    }


def test_a_move_to_another_kind_is_none() -> None:
    line = run(
        step("c1", 1, put("AGENTS.md", "x", added=True)),
        step("c2", 2, drop("AGENTS.md"), put("a/SKILL.md", "x", added=True)),
        moved=(Rename("c2", "AGENTS.md", "a/SKILL.md"),),
    )
    assert all(draft.previously == () for draft in line.artifacts)


def test_links_and_submodules_in_place_of_the_file_are_named() -> None:
    line = run(
        step(
            "c1",
            1,
            put("CLAUDE.md", "l", mode="120000", added=True),
            put("m/SKILL.md", "s", mode="160000", added=True),
        )
    )
    assert line.artifacts == ()
    assert {each.path for each in line.skipped} == {"CLAUDE.md", "m/SKILL.md"}
    assert "symbolic link" in line.skipped[0].reason


def test_a_link_that_becomes_a_file_has_versions_from_then_on() -> None:
    draft = only(
        run(
            step("c1", 1, put("CLAUDE.md", "l", mode="120000", added=True)),
            step("c2", 2, put("CLAUDE.md", "x")),
        )
    )
    assert [v.commit.oid for v in draft.versions] == ["c2"]


def test_skill_md_gives_way_to_the_other_spelling() -> None:
    line = run(
        step("c1", 1, put("a/SKILL.md", "x", added=True), put("a/skill.md", "y", added=True))
    )
    assert [draft.artifact.path for draft in line.artifacts] == ["a/SKILL.md"]
    assert [each.path for each in line.skipped] == ["a/skill.md"]


def test_what_a_shallow_boundary_adds_has_no_version() -> None:
    line = run(
        step("c1", 1, put("a/SKILL.md", "x", added=True), put("b/SKILL.md", "x", added=True)),
        step("c2", 2, put("b/SKILL.md", "y")),
        shallow=frozenset({"c1"}),
    )
    assert [(d.artifact.path, [v.commit.oid for v in d.versions]) for d in line.artifacts] == [
        ("b/SKILL.md", ["c2"])
    ]
    assert "shallow" in next(each.reason for each in line.skipped if each.path == "a/SKILL.md")


def test_absurd_committer_times_are_named() -> None:
    line = run(step("c1", 1 << 60, put("a/SKILL.md", "x", added=True)))
    assert line.artifacts == ()
    assert "committer time" in line.skipped[0].reason


def test_folders_beyond_the_limit_are_refused_whole() -> None:
    changes = [
        put("a/SKILL.md", "x", added=True),
        *(put(f"a/{n}", "f", added=True) for n in range(5)),
    ]
    line = run(step("c1", 1, *changes), bounds=Bounds(folder_files=5))
    assert line.artifacts == ()
    assert "6 files" in line.skipped[0].reason


def test_only_the_newest_folder_revisions_are_kept() -> None:
    steps = [step(f"r{n}", n, put("a/f", f"o{n}")) for n in range(2, 12)]
    line = run(
        step("c1", 1, put("a/SKILL.md", "x", added=True)), *steps, bounds=Bounds(folder_revisions=3)
    )
    version = only(line).versions[0]
    assert [r.commit.oid for r in version.revisions] == ["r9", "r10", "r11"]
    assert version.dropped_revisions == 7


def test_manifest_lines_are_bounded() -> None:
    steps = [step(f"c{n}", n, put("a/SKILL.md", f"x{n}", added=n == 1)) for n in range(1, 8)]
    line = run(*steps, bounds=Bounds(manifest_lines=3))
    assert len(only(line).versions) == 3
    assert "more than 3 lines" in line.skipped[0].reason


def test_hostile_paths_never_become_artifacts() -> None:
    line = run(
        step(
            "c1", 1, put("../SKILL.md", "x", added=True), put("a\udcff/SKILL.md", "x", added=True)
        ),
        bounds=Bounds(path=PathLimits()),
    )
    assert line.artifacts == ()
    assert len(line.skipped) == 2
