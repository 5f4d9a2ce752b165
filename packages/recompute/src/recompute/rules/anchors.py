"""Fingerprints of the source statements that a rule rests on.

A rule names a function and words; the statements of that function that hold all of the words, with the
conditions around them, are the anchor. Its hash ignores comments, layout and the text of messages, so it
changes when the condition changes and not when the wording does.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

from recompute.rules.types import MEGATRON, Rule

DIGITS: Final = 16
"""Hexadecimal digits kept of a SHA-256."""

Parsed = dict[str, ast.Module | None]


def anchored(rule: Rule) -> bool:
    """Say whether a rule rests on a function of a Megatron-LM source file."""
    source = rule.source
    return source.repository == MEGATRON and source.revision is None and source.path.endswith(".py")


def fingerprint(rule: Rule, module: ast.Module) -> str | None:
    """Return the hash of a rule's anchor, ``None`` when the function or the words are not there."""
    node = _find(module, rule.source.where)
    if node is None:
        return None
    if isinstance(node, ast.ClassDef) or not rule.source.terms:
        return _hash([ast.unparse(_plain(node))])
    chosen = [
        plain
        for plain, text in _statements(node.body, ())
        if all(term in text for term in rule.source.terms)
    ]
    return _hash(sorted(chosen)) if chosen else None


def changed(
    rules: tuple[Rule, ...],
    known: Mapping[str, Mapping[str, str]],
    revision: str,
    modules: Mapping[str, ast.Module | None],
) -> frozenset[str]:
    """Return the ids of the rules whose anchor in ``modules`` is not the one that was read.

    Args:
        rules: The rules to look at.
        known: Rule id -> revision -> hash.
        revision: Name of the revision that the source claims to be.
        modules: Path -> parsed file, ``None`` where it is missing.
    """
    ids = set()
    for rule in rules:
        expected = known.get(rule.id, {}).get(revision)
        if expected is None:
            continue
        module = modules.get(rule.source.path)
        if module is None or fingerprint(rule, module) != expected:
            ids.add(rule.id)
    return frozenset(ids)


def _find(module: ast.Module, where: str) -> ast.FunctionDef | ast.ClassDef | None:
    node: ast.Module | ast.FunctionDef | ast.ClassDef = module
    for name in where.split("."):
        found = next(
            (
                child
                for child in node.body
                if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name
            ),
            None,
        )
        if found is None:
            return None
        node = found
    return None if isinstance(node, ast.Module) else node


def _statements(body: list[ast.stmt], guards: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each leaf statement with its conditions: the normalized text, and the full text."""
    for node in body:
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            yield from _statements(node.body, (*guards, test))
            yield from _statements(node.orelse, (*guards, f"not ({test})"))
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Try | ast.FunctionDef):
            yield from _statements(node.body, guards)
        elif not isinstance(node, ast.ClassDef):
            before = " and ".join(guards)
            yield f"{before}: {_bare(node)}", f"{before}: {ast.unparse(node)}"


def _bare(node: ast.stmt) -> str:
    """Write a statement without the text of its message."""
    if isinstance(node, ast.Assert):
        return f"assert {ast.unparse(node.test)}"
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return f"raise {ast.unparse(node.exc.func)}"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return f"{ast.unparse(node.value.func)}()"
    return ast.unparse(node)


class _NoMessages(ast.NodeTransformer):
    """Takes formatted strings out: they are messages, and Python versions write them differently."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        """Return an empty text in place of a formatted string."""
        return ast.copy_location(ast.Constant(value=""), node)


def _plain(node: ast.FunctionDef | ast.ClassDef) -> ast.FunctionDef | ast.ClassDef:
    """Return a copy without docstrings and formatted strings."""
    copied = copy.deepcopy(node)
    _NoMessages().visit(copied)
    for inner in ast.walk(copied):
        body = getattr(inner, "body", None)
        if isinstance(body, list):
            kept = [child for child in body if not _is_text(child)]
            inner.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return copied


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _hash(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGITS]
