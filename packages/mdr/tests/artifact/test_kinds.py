"""The table of kinds, row by row, and everything that is refused, reason by reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.artifact.discover import (
    PathLimits,
    classify,
    collisions,
    link_problem,
    mode_problem,
    path_problem,
)
from mdr.artifact.kinds import KINDS, KindRow, name_of, near_miss, row_of
from mdr.artifact.types import Kind

LIMITS = PathLimits()


@pytest.mark.parametrize("row", KINDS, ids=lambda row: f"{row.of}-{row.takes}")
def test_each_row_takes_its_example_and_leaves_the_other(row: KindRow) -> None:
    assert row_of(row.takes) is row
    assert row.pattern.fullmatch(row.leaves) is None
    left = row_of(row.leaves)
    assert left is None or left.kind is not row.kind


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("skills/pdf/SKILL.md", Kind.SKILL, "pdf"),
        ("SKILL.md", Kind.SKILL, "tools"),
        ("a/b/skill.md", Kind.SKILL, "b"),
        ("AGENTS.md", Kind.INSTRUCTIONS, "AGENTS"),
        ("x/.cursorrules", Kind.RULE, ".cursorrules"),
        ("instructions/go.instructions.md", Kind.INSTRUCTIONS, "go"),
        (".gemini/commands/ship.toml", Kind.COMMAND, "ship"),
        (".cursor/rules/deep/style.mdc", Kind.RULE, "style"),
    ],
)
def test_kind_and_name(path: str, kind: Kind, name: str) -> None:
    found = classify(path, host="github.com", repository="acme/tools", limits=LIMITS)
    assert found is not None
    assert found.artifact is not None
    assert (found.artifact.kind, found.artifact.name) == (kind, name)


@pytest.mark.parametrize(
    "path", ["README.md", "docs/guide.md", "src/main.py", "skills/x/notes.md", "rules/3d.md"]
)
def test_other_files_are_nothing(path: str) -> None:
    assert classify(path, host="h", repository="o/r", limits=LIMITS) is None


def test_a_third_spelling_of_skill_md_is_named() -> None:
    assert near_miss("skills/x/Skill.md") is not None
    assert near_miss("skills/x/SKILL.md") is None
    found = classify("skills/x/Skill.md", host="h", repository="o/r", limits=LIMITS)
    assert found is not None
    assert found.artifact is None


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("../SKILL.md", "'..'"),
        ("a/../../SKILL.md", "'..'"),
        ("a//SKILL.md", "empty"),
        ("/SKILL.md", "empty"),
        ("./SKILL.md", "'.'"),
        (".git/SKILL.md", ".git"),
        ("a/.GIT/SKILL.md", ".git"),
        ("-rf/SKILL.md", "option"),
        ("a\nb/SKILL.md", "control"),
        ("a\x1b[2J/SKILL.md", "control"),
        ("a\x85/SKILL.md", "control"),
        ("a\\b/SKILL.md", "backslash"),
        ("a\u202egp/SKILL.md", "reorder"),
        ("a\U000e0041/SKILL.md", "reorder"),
        ("a\u200b/SKILL.md", "invisible"),
        ("a\udcff/SKILL.md", "UTF-8"),
        ("x" * 1_100 + "/SKILL.md", "longer"),
        ("d/" * 65 + "SKILL.md", "deeper"),
    ],
)
def test_hostile_paths_are_refused_with_their_reason(path: str, word: str) -> None:
    problem = path_problem(path, LIMITS)
    assert problem is not None
    assert word in problem
    found = classify(path, host="h", repository="o/r", limits=LIMITS)
    assert found is not None
    assert found.artifact is None


@pytest.mark.parametrize(
    "path",
    [
        "skills/día/SKILL.md",
        "技能/SKILL.md",
        "a b/SKILL.md",
        "aux/SKILL.md",
        "d/" * 64 + "SKILL.md",
    ],
)
def test_unusual_paths_that_are_served(path: str) -> None:
    assert path_problem(path, LIMITS) is None


@given(st.text(max_size=40))
def test_a_served_path_stays_inside_and_has_no_control_character(text: str) -> None:
    if path_problem(text, LIMITS) is None:
        assert not text.startswith("/")
        assert ".." not in text.split("/")
        assert not any(ord(char) < 0x20 for char in text)


@pytest.mark.parametrize(
    ("mode", "fine"),
    [("100644", True), ("100755", True), ("120000", False), ("160000", False), ("060000", False)],
)
def test_modes(mode: str, *, fine: bool) -> None:
    assert (mode_problem(mode) is None) is fine


FOLDER = ("SKILL.md", "scripts/run.py", "refs/deep/a.md", "link")


@pytest.mark.parametrize("target", ["SKILL.md", "scripts/run.py", "./scripts", "refs/deep"])
def test_links_that_stay_inside(target: str) -> None:
    assert link_problem("link", target.encode(), FOLDER) is None


def test_a_link_from_a_subfolder_may_climb_inside() -> None:
    assert link_problem("refs/deep/up", b"../../SKILL.md", FOLDER) is None


@pytest.mark.parametrize(
    ("link", "target", "word"),
    [
        ("link", b"../../../etc/passwd", "leaves"),
        ("link", b"/etc/passwd", "absolute"),
        ("link", b"C:/Windows", "absolute"),
        ("link", b"missing.md", "exist"),
        ("link", b"link", "itself"),
        ("link", b".", "around"),
        ("refs/deep/up", b"..", "around"),
        ("link", b"scripts/../SKILL.md", "back out"),
        ("link", b"", "empty"),
        ("link", b"\xff", "UTF-8"),
        ("link", b"a\nb", "odd"),
    ],
)
def test_links_that_are_refused(link: str, target: bytes, word: str) -> None:
    problem = link_problem(link, target, FOLDER)
    assert problem is not None
    assert word in problem


def test_collisions_of_case_and_unicode_form() -> None:
    names = ["A.md", "a.md", "é.md", "e\u0301.md", "b.md", "STRASSE", "straße"]
    assert collisions(names) == {"a.md": "A.md", "é.md": "e\u0301.md", "straße": "STRASSE"}


def test_a_name_is_never_empty() -> None:
    for row in KINDS:
        assert name_of(row.takes, row, "acme/tools")
