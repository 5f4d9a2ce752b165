"""Fail when a module or a function outgrows the budget, or a file has a name that says nothing.

Takes the source trees of both packages, gives one line per excess and exit status 1.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60
TARGET_FUNCTION_LINES = 30
MAX_SHARE_OVER_TARGET = 0.10
BANNED_NAMES = frozenset({"utils", "helpers", "common", "misc", "base_struct"})

EXCEPTIONS: dict[str, str] = {}
"""Path or path:function -> the reason why it may exceed the budget."""


@dataclass(frozen=True, slots=True)
class FunctionSize:
    """One function and its code lines, docstring and nested functions included once."""

    where: str
    lines: int


def function_sizes(path: Path, name: str) -> list[FunctionSize]:
    """Return the size of every function of a module, its docstring left out."""
    sizes = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0]
        doc = (
            (first.end_lineno or first.lineno) - first.lineno + 1 if ast.get_docstring(node) else 0
        )
        lines = (node.end_lineno or node.lineno) - node.lineno + 1 - doc
        sizes.append(FunctionSize(f"{name}:{node.name}", lines))
    return sizes


def excesses(root: Path) -> list[str]:
    """Return one line for each broken budget under ``root``."""
    problems: list[str] = []
    sizes: list[FunctionSize] = []
    for path in sorted(root.glob("packages/*/src/**/*.py")):
        name = str(path.relative_to(root))
        if path.stem in BANNED_NAMES:
            problems.append(f"{name}: the name says nothing about its job")
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_MODULE_LINES and name not in EXCEPTIONS:
            problems.append(f"{name}: {lines} lines, at most {MAX_MODULE_LINES}")
        sizes += function_sizes(path, name)
    problems += [
        f"{size.where}: {size.lines} lines, at most {MAX_FUNCTION_LINES}"
        for size in sizes
        if size.lines > MAX_FUNCTION_LINES and size.where not in EXCEPTIONS
    ]
    over = [size for size in sizes if size.lines > TARGET_FUNCTION_LINES]
    if len(over) > MAX_SHARE_OVER_TARGET * len(sizes):
        problems.append(
            f"{len(over)} of {len(sizes)} functions exceed {TARGET_FUNCTION_LINES} lines"
        )
    return problems


def main() -> int:
    """Print the excesses; return 1 when there is one."""
    problems = excesses(Path(__file__).resolve().parent.parent)
    for line in problems:
        print(line)
    print("size budget: kept" if not problems else f"size budget: {len(problems)} excesses")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
