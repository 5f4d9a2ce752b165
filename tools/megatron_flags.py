"""Write the table of Megatron-LM's command-line flags from a clone of it.

    tools/megatron_flags.py MEGATRON_GIT_DIR > packages/recompute/src/recompute/config/megatron_flags.json

Static reading only. A row is ``flag -> [name, values, type, constant]``: ``values`` is 0 for a switch, 1, or
``+``, ``*``, ``?`` as argparse writes them; ``constant`` is what a switch sets.
"""

from __future__ import annotations

import ast
import json
import sys

from known_fields import REVISIONS, Klass, archive, base_name

HANDWRITTEN = (
    "megatron/training/arguments.py",
    "megatron/training/tokenizer/tokenizer.py",
    "megatron/post_training/arguments.py",
    "pretrain_gpt.py",
    "pretrain_hybrid.py",
    "pretrain_mamba.py",
    "pretrain_vlm.py",
    "examples/multimodal/multimodal_args.py",
)
ROOTS = (*HANDWRITTEN, "megatron", "examples", "tools", "tasks")
OLD = {"0.8": "core_v0.8.0", "0.10": "core_v0.10.0", "0.11": "core_v0.11.0"}
NEWEST = ("dev", "main", "pin", "0.19")
"""Later entries win where revisions disagree."""

Row = list[object]


def rows(files: dict[str, str]) -> dict[str, Row]:
    """Return the flags of one revision: those written by hand win over those made from classes."""
    found: dict[str, Row] = {}
    classes = dataclass_fields(files)
    for name in HANDWRITTEN:
        if name not in files:
            continue
        tree = ast.parse(files[name])
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and base_name(node.func) == "ArgumentGroupFactory":
                excluded = excluded_names(tree, node)
                klass = base_name(node.args[0])
                for field in inherited(classes, klass):
                    if field not in excluded:
                        for flag, row in generated(classes, klass, field):
                            found.setdefault(flag, row)
    for name in sorted(set(files) - set(HANDWRITTEN)):
        # Other programs of the repository: their flags are known, but say nothing about training.
        for flag, row in written_in(files[name]):
            found.setdefault(flag, row)
    for name in HANDWRITTEN:
        found.update(written_in(files.get(name, "")))
    return found


def written_in(text: str) -> list[tuple[str, Row]]:
    """Return the rows of every ``add_argument`` call of a file."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    return [
        pair
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and base_name(node.func) == "add_argument"
        for pair in handwritten(node).items()
    ]


def handwritten(node: ast.Call) -> dict[str, Row]:
    """Return the rows of one ``add_argument`` call."""
    flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    words = {k.arg: k.value for k in node.keywords if k.arg}
    if not flags or not flags[0].startswith("--"):
        return {}
    dest = text(words.get("dest")) or flags[0].removeprefix("--").replace("-", "_")
    row = argparse_row(dest, words)
    return {flag: row for flag in flags if flag.startswith("--")}


def argparse_row(dest: str, words: dict[str, ast.expr]) -> Row:
    """Return a row from the keyword arguments of ``add_argument``."""
    action = text(words.get("action"))
    if action in ("store_true", "store_false"):
        return [dest, 0, "bool", action == "store_true"]
    if action in ("store_const", "append_const"):
        return [dest, 0, "const", None]
    values = literal_or(words.get("nargs"), 1)
    kind = base_name(words["type"]) if "type" in words else "str"
    return [dest, values, kind or "str"]


def dataclass_fields(files: dict[str, str]) -> dict[str, tuple[Klass, dict[str, ast.AnnAssign]]]:
    """Return every class with the statements that declare its fields."""
    found: dict[str, tuple[Klass, dict[str, ast.AnnAssign]]] = {}
    for path, content in files.items():
        if not path.startswith("megatron/"):
            continue
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.ClassDef):
                declared = {
                    item.target.id: item
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
                found[node.name] = (Klass(bases=tuple(map(base_name, node.bases))), declared)
    return found


def inherited(
    classes: dict[str, tuple[Klass, dict[str, ast.AnnAssign]]], name: str
) -> dict[str, ast.AnnAssign]:
    """Return the fields of a class and of its bases."""
    if name not in classes:
        return {}
    klass, declared = classes[name]
    result: dict[str, ast.AnnAssign] = {}
    for base in klass.bases:
        result.update(inherited(classes, base))
    return {**result, **declared}


def excluded_names(tree: ast.Module, call: ast.Call) -> set[str]:
    """Return the ``exclude`` list of a factory, given in place or as a name of the same file."""
    for keyword in call.keywords:
        if keyword.arg == "exclude":
            value = keyword.value
            if isinstance(value, ast.Name):
                for node in ast.walk(tree):
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == value.id:
                        return set(ast.literal_eval(node.value))
            return set(ast.literal_eval(value))
    return set()


def generated(
    classes: dict[str, tuple[Klass, dict[str, ast.AnnAssign]]], klass: str, field: str
) -> list[tuple[str, Row]]:
    """Return the flags that the factory makes from one field, as its code does."""
    node = inherited(classes, klass)[field]
    annotation = ast.unparse(node.annotation)
    inner = annotation.removeprefix("Optional[").removesuffix(" | None").removesuffix("]")
    default, meta = node.value, {}
    if isinstance(default, ast.Call) and base_name(default.func) == "field":
        words = {k.arg: k.value for k in default.keywords}
        default = words.get("default")
        if "metadata" in words and isinstance(words["metadata"], ast.Dict):
            meta = meta_words(words["metadata"])
    names = [f"--{field.replace('_', '-')}"]
    row: Row
    if inner == "bool" and "action" not in meta and "type" not in meta:
        false_by_default = text_of(default) in ("False", "")
        if not false_by_default:
            names = [f"--no-{field.replace('_', '-')}", f"--disable-{field.replace('_', '-')}"]
        row = [field, 0, "bool", false_by_default]
    elif inner.lower().startswith("list[") and "nargs" not in meta:
        row = [field, "+", "str"]
    else:
        kind = {"int": "int", "float": "float"}.get(inner, "str")
        row = argparse_row(text(meta.get("dest")) or field, {**meta})
        row = [*row[:2], kind, *row[3:]] if row[1] != 0 and "type" not in meta else row
    if "arg_names" in meta:
        names = list(ast.literal_eval(meta["arg_names"]))
    return [(name, row) for name in names]


def meta_words(node: ast.Dict) -> dict[str, ast.expr]:
    """Return the entries of ``metadata={"argparse_meta": {...}}``."""
    for key, value in zip(node.keys, node.values, strict=True):
        if text(key) == "argparse_meta" and isinstance(value, ast.Dict):
            return {text(k): v for k, v in zip(value.keys, value.values, strict=True)}
    return {}


def text(node: ast.expr | None) -> str:
    """Return a string constant, or nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def text_of(node: ast.expr | None) -> str:
    """Return an expression as written, or nothing."""
    return "" if node is None else ast.unparse(node)


def literal_or(node: ast.expr | None, default: object) -> object:
    """Return a literal, or ``default``."""
    if node is None:
        return default
    try:
        return ast.literal_eval(node)
    except ValueError:
        return default


def main() -> None:
    """Read every revision, older first, and print the union."""
    git_dir = sys.argv[1]
    table: dict[str, Row] = {}
    revisions = {**OLD, **REVISIONS}
    order = [name for name in revisions if name not in NEWEST] + list(NEWEST)
    for name in order:
        table.update(rows(dict(archive(git_dir, revisions[name], *ROOTS))))
    print("{")
    for position, (flag, row) in enumerate(sorted(table.items())):
        print(("," if position else "") + f'"{flag}": {json.dumps(row)}')
    print("}")


if __name__ == "__main__":
    main()
