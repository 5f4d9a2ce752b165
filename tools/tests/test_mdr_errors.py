"""docs/reference/mdr-errors.md has a heading for every code that mdr can raise, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mdr
from mdr import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/mdr-errors.md"
SOURCE = Path(mdr.__file__).parent
CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type)}


def raised() -> dict[str, str]:
    """Return each code with the module it is raised in.

    A code is a text given first to an error class, or to a function of the package whose first
    parameter is called ``code`` and that returns an error; so a new helper cannot hide one.
    """
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    found: dict[str, str] = {}
    for path, tree in trees.items():
        helpers = CLASSES | {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and node.args.args
            and node.args.args[0].arg == "code"
            and getattr(node.returns, "id", "") in CLASSES
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0]
            if name in helpers:
                for part in ast.walk(first):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found[part.value] = path.relative_to(SOURCE).as_posix()
    return found


def headings() -> list[str]:
    return re.findall(r"^### `([a-z0-9-]+)`$", PAGE.read_text("utf-8"), flags=re.MULTILINE)


def test_every_code_has_a_heading() -> None:
    missing = {code: where for code, where in raised().items() if code not in headings()}
    assert missing == {}


def test_every_heading_is_a_code() -> None:
    rendered = {
        "usage",
        "aborted",
        "os-error",
    }  # mdr.cli.render_error gives these to foreign errors
    assert set(headings()) - set(raised()) - rendered == set()


def test_codes_are_kebab_case_and_headings_are_there_once() -> None:
    assert [code for code in raised() if not CODE.fullmatch(code)] == []
    assert len(headings()) == len(set(headings()))


def test_the_page_states_the_exit_code_of_the_class() -> None:
    stated = dict(
        re.findall(r"### `([\w-]+)`\n\n.*?Exit code (\d)\.", PAGE.read_text("utf-8"), re.DOTALL)
    )
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = getattr(getattr(node, "func", None), "id", "")
            if (
                name in CLASSES
                and isinstance(node, ast.Call)
                and isinstance(node.args[0], ast.Constant)
            ):
                code = str(node.args[0].value)
                if stated.get(code) != str(vars(errors)[name].exit_code):
                    wrong.append((path.name, code))
    assert wrong == []
