"""Megatron Bridge's modules as syntax trees, and the values that an interpreter of them meets."""

from __future__ import annotations

import ast
from typing import Any

ROOT = "src/"
MAX_DEPTH = 40


class Unknown:
    """A value that only running Bridge would give."""

    def __bool__(self) -> bool:
        raise Stuck

    def __deepcopy__(self, memo: object) -> Unknown:
        return self


class Stuck(Exception):
    """The interpreter cannot go on with this expression."""


class Return(Exception):
    """A function returned."""

    def __init__(self, value: Any) -> None:
        self.value = value


UNKNOWN = Unknown()


class External:
    """A name from outside Bridge, such as ``torch.bfloat16``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, External) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __deepcopy__(self, memo: object) -> External:
        return self


class Object:
    """An instance of a configuration class: what was set on it, and the class for its defaults."""

    def __init__(self, kind: str, values: dict[str, Any]) -> None:
        self.kind = kind
        self.values = values


class Repository:
    """The modules of Bridge as syntax trees, and the names they define."""

    def __init__(self, files: dict[str, str]) -> None:
        self.trees: dict[str, ast.Module] = {}
        for path, text in files.items():
            name = path.removeprefix(ROOT).removesuffix(".py").replace("/", ".")
            self.trees[name.removesuffix(".__init__")] = ast.parse(text)
        self.cache: dict[str, dict[str, Any]] = {}

    def names(self, module: str) -> dict[str, Any]:
        """Return what a module defines: nodes of functions and classes, values, and imports as pairs."""
        if module in self.cache:
            return self.cache[module]
        found: dict[str, Any] = {}
        self.cache[module] = found
        for node in self.trees[module].body:
            self._define(node, module, found)
        return found

    def _define(self, node: ast.stmt, module: str, found: dict[str, Any]) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (node, module)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                base = ".".join([*parts[: len(parts) - node.level], base]).strip(".")
            for alias in node.names:
                found[alias.asname or alias.name] = ("import", base, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found[(alias.asname or alias.name).partition(".")[0]] = External(
                    (alias.asname and alias.name) or alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[target.id] = ("value", node.value, module)
        elif isinstance(node, ast.Try | ast.If):
            for inner in node.body:
                self._define(inner, module, found)

    def resolve(self, module: str, name: str, depth: int = 0) -> Any:
        """Return what a name stands for, imports followed."""
        if module not in self.trees or depth > MAX_DEPTH:
            return External(f"{module}.{name}")
        found = self.names(module).get(name)
        if found is None:
            if f"{module}.{name}" in self.trees:
                return ("module", f"{module}.{name}")
            for node in self.trees[module].body:
                if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                    value = self.resolve(node.module or "", name, depth + 1)
                    if not isinstance(value, External):
                        return value
            return External(f"{module}.{name}")
        if isinstance(found, tuple) and found[0] == "import":
            return self.resolve(found[1], found[2], depth + 1)
        return found

    def defaults(self, kind: tuple[ast.ClassDef, str]) -> dict[str, Any]:
        """Return the literal defaults of a class and its bases."""
        node, module = kind
        values: dict[str, Any] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                parent = self.resolve(module, base.id)
                if isinstance(parent, tuple) and isinstance(parent[0], ast.ClassDef):
                    values.update(self.defaults(parent))
        for item in node.body:
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and item.value is not None
            ):
                values[item.target.id] = (item.value, module)
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                values[item.targets[0].id] = (item.value, module)
        return values
