"""Path rules of three systems, asked on every one."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.install.portable import REASONS, fold, path_problem, tree_problem

REFUSED = {
    "not-relative": ["", "/etc/passwd", "a//b", "a/", ".", "a/../b", "./a"],
    "not-utf-8": ["a\udc80"],
    "forbidden-character": [
        "a:b",
        "C:/x",
        "a\\b",
        "what?",
        "a*b",
        'say"',
        "a<b",
        "a>b",
        "a|b",
        "a\tb",
        "a\x7f",
    ],
    "reserved-name": [
        "CON",
        "con.md",
        "docs/Aux",
        "nul.tar.gz",
        "COM1",
        "lpt9.txt",
        "com¹",
        "CONIN$",
        "aux .md",
    ],
    "trailing-dot-or-space": ["a.", "a ", "docs./x", "docs /x", "..."],
    "git-folder": [".git/config", "a/.Git/x", "git~1", "GIT~2/x", ".g\u200cit/x", ".git"],
    "long-name": ["é" * 128],
    "long-path": ["/".join(["d" * 20] * 9), "𐍈" * 91],
}
FINE = [
    "SKILL.md",
    "a/b/c.txt",
    "console.md",
    "com10.txt",
    "auxiliary",
    ".gitignore",
    ".github/x",
    "技能/é.md",
    "a b.md",
    "-rf",
    "~x",
    "é" * 127,
    "nul-and-void",
]


@pytest.mark.parametrize(
    ("reason", "path"), [(r, p) for r, paths in REFUSED.items() for p in paths]
)
def test_a_refused_path_names_its_reason(reason: str, path: str) -> None:
    problem = path_problem(path)
    assert problem is not None
    assert problem.reason == reason
    problem.message.encode()


@pytest.mark.parametrize("path", FINE)
def test_ordinary_paths_pass(path: str) -> None:
    assert path_problem(path) is None


def test_every_reason_has_an_example() -> None:
    assert set(REFUSED) | {"collision", "file-and-folder"} == set(REASONS)


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["a.md", "A.md"], "collision"),
        (["docs/a", "Docs/b"], "collision"),
        ([unicodedata.normalize("NFC", "é.md"), unicodedata.normalize("NFD", "é.md")], "collision"),
        (["straße.md", "STRASSE.md"], "collision"),
        (["ﬁle.md", "file.md"], "collision"),
        (["a.md", "a.md"], "collision"),
        (["a", "a/b"], "file-and-folder"),
        (["a/b", "A"], "collision"),
        (["ok", "nul"], "reserved-name"),
    ],
)
def test_two_paths_that_are_one_somewhere(paths: list[str], reason: str) -> None:
    for order in (paths, paths[::-1]):
        problem = tree_problem(order)
        assert problem is not None
        assert problem.reason == reason


def test_an_ordinary_tree_passes() -> None:
    assert tree_problem(["SKILL.md", "scripts/a.py", "scripts/b.py", "references/a.md"]) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_fold_is_stable_and_blind_to_case_and_form(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert fold(unicodedata.normalize("NFD", text)) == fold(unicodedata.normalize("NFC", text))


@given(st.text(st.characters(codec="ascii"), max_size=20))
def test_fold_of_ascii_ignores_case(text: str) -> None:
    assert fold(text.upper()) == fold(text.lower())
