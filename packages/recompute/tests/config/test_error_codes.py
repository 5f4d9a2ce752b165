"""Every error code that the package raises has a heading in the reference, and every heading a code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/recompute"
REFERENCE = Path(__file__).parents[4] / "docs/reference/recompute-errors.md"
ERRORS = {"ConfigError", "InputError", "UnsupportedError", "WorldError"}
CODE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


def codes_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ERRORS and node.args and isinstance(node.args[0], ast.Constant):
            found.add(str(node.args[0].value))
        elif name == "_fail" and len(node.args) > 2 and isinstance(node.args[2], ast.Constant):
            found.add(str(node.args[2].value))
    return found


def geometry_codes() -> set[str]:
    """Codes that stand first in the tuples which geometry's checks yield."""
    tree = ast.parse((SOURCE / "config/geometry.py").read_text(encoding="utf-8"))
    return {
        str(node.value.elts[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Yield)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.value.elts[0], ast.Constant)
    }


def raised() -> set[str]:
    found = geometry_codes()
    for path in SOURCE.rglob("*.py"):
        found |= codes_of(path)
    return {code for code in found if CODE.fullmatch(code)}


def headings() -> set[str]:
    text = REFERENCE.read_text(encoding="utf-8")
    return set(re.findall(r"^### `([a-z0-9-]+)`", text, re.MULTILINE))


def test_every_code_is_documented() -> None:
    assert raised() - headings() == set()


def test_every_documented_code_is_raised() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    assert {code for code in headings() if f'"{code}"' not in text} == set()


def test_the_codes_are_really_found() -> None:
    assert {
        "yaml-limit",
        "does-not-divide",
        "unknown-field",
        "bad-override",
        "batch-size",
    } <= raised()
