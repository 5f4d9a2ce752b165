"""The size budget finds what it should."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location(
    "size_budget", Path(__file__).parent.parent / "size_budget.py"
)
assert SPEC is not None
assert SPEC.loader is not None
size_budget = importlib.util.module_from_spec(SPEC)
__import__("sys").modules["size_budget"] = size_budget
SPEC.loader.exec_module(size_budget)


def write(root: Path, name: str, text: str) -> None:
    path = root / "packages/p/src/p" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_small_tree_keeps_the_budget(tmp_path: Path) -> None:
    write(tmp_path, "stage.py", "def f() -> int:\n    return 1\n")
    assert size_budget.excesses(tmp_path) == []


def test_long_functions_long_modules_and_empty_names_are_named(tmp_path: Path) -> None:
    body = "\n".join(f"    x{i} = {i}" for i in range(70))
    write(tmp_path, "long.py", f"def f():\n{body}\n")
    write(tmp_path, "utils.py", "X = 1\n")
    write(tmp_path, "huge.py", "X = 1\n" * 501)
    found = "\n".join(size_budget.excesses(tmp_path))
    assert "long.py:f: 71 lines" in found
    assert "utils.py: the name says nothing" in found
    assert "huge.py: 501 lines" in found


def test_a_docstring_does_not_count(tmp_path: Path) -> None:
    doc = "\n".join(f"    line {i}" for i in range(80))
    write(
        tmp_path,
        "documented.py",
        f'def f() -> int:\n    """Say much.\n{doc}\n    """\n    return 1\n',
    )
    assert size_budget.excesses(tmp_path) == []
