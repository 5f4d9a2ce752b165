"""A small interpreter of Megatron Bridge's recipe functions: nothing of Bridge is imported or run.

Follows assignments, calls of other functions of Bridge, literals, and ``if`` whose condition is known.
What only running Bridge would give is :data:`bridge_source.UNKNOWN`.
"""

from __future__ import annotations

import ast
import copy
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge_source import MAX_DEPTH, UNKNOWN, External, Object, Repository, Return, Stuck, Unknown

ARCHITECTURES = (
    Path(__file__).parents[1] / "packages/recompute/src/recompute/config/architectures.json"
)
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b or (a == b and b in (True, False)),
    ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
BUILTINS: dict[str, Any] = {
    "max": max,
    "min": min,
    "len": len,
    "list": list,
    "dict": dict,
    "str": str,
    "int": int,
    "set": set,
    "range": range,
    "sorted": sorted,
    "float": float,
    "bool": bool,
    "tuple": tuple,
    "any": any,
    "all": all,
    "sum": sum,
}


class Interpreter:
    """Runs recipe functions over syntax trees."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.depth = 0
        self.unknown: set[str] = set()

    def call(
        self, function: tuple[ast.FunctionDef, str], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function and return what it returns."""
        node, module = function
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.depth -= 1
            return UNKNOWN
        scope: dict[str, Any] = {}
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        for name, default in zip(reversed(names), reversed(node.args.defaults), strict=False):
            scope[name] = self.value(default, {}, module)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            scope[argument.arg] = UNKNOWN if default is None else self.value(default, {}, module)
        scope |= dict(zip(names, args, strict=False)) | {
            k: v
            for k, v in kwargs.items()
            if k in names or k in {a.arg for a in node.args.kwonlyargs}
        }
        if node.args.kwarg:
            scope[node.args.kwarg.arg] = {k: v for k, v in kwargs.items() if k not in scope}
        for name in names:
            scope.setdefault(name, UNKNOWN)
        try:
            self.body(node.body, scope, module)
        except Return as result:
            return result.value
        finally:
            self.depth -= 1
        return None

    def body(self, nodes: list[ast.stmt], scope: dict[str, Any], module: str) -> None:
        """Run statements."""
        for node in nodes:
            self.statement(node, scope, module)

    def statement(  # noqa: C901, PLR0912 - one case per kind of statement
        self, node: ast.stmt, scope: dict[str, Any], module: str
    ) -> None:
        """Run one statement; what is not understood changes nothing."""
        match node:
            case ast.Return():
                raise Return(None if node.value is None else self.value(node.value, scope, module))
            case ast.Assign():
                value = self.value(node.value, scope, module)
                for target in node.targets:
                    self.assign(target, value, scope, module)
            case ast.AnnAssign() if node.value is not None:
                self.assign(node.target, self.value(node.value, scope, module), scope, module)
            case ast.AugAssign():
                target = ast.BinOp(left=node.target, op=node.op, right=node.value)
                self.assign(node.target, self.value(target, scope, module), scope, module)
            case ast.If():
                try:
                    branch = node.body if self.value(node.test, scope, module) else node.orelse
                except Stuck:
                    self.unknown.add(ast.unparse(node.test))
                    return
                self.body(branch, scope, module)
            case ast.For():
                items = self.value(node.iter, scope, module)
                if isinstance(items, list | tuple | range | dict):
                    for item in items:
                        self.assign(node.target, item, scope, module)
                        self.body(node.body, scope, module)
            case ast.Expr():
                self.value(node.value, scope, module)
            case ast.With() | ast.Try():
                self.body(node.body, scope, module)
            case ast.FunctionDef():
                scope[node.name] = (node, module)
            case ast.ImportFrom():
                for alias in node.names:
                    scope[alias.asname or alias.name] = self.repository.resolve(
                        node.module or "", alias.name
                    )
            case ast.Delete():
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        owner = self.value(target.value, scope, module)
                        if isinstance(owner, Object):
                            owner.values.pop(target.attr, None)

    def assign(self, target: ast.expr, value: Any, scope: dict[str, Any], module: str) -> None:
        """Bind a target."""
        match target:
            case ast.Name():
                scope[target.id] = value
            case ast.Attribute():
                owner = self.value(target.value, scope, module)
                if isinstance(owner, Object):
                    if target.attr == "model" and isinstance(value, Unknown):
                        value = Object("Model", {})
                    owner.values[target.attr] = value
            case ast.Subscript():
                owner = self.value(target.value, scope, module)
                key = self.value(target.slice, scope, module)
                if isinstance(owner, dict) and not isinstance(key, Unknown):
                    owner[key] = value
            case ast.Tuple() if isinstance(value, tuple | list):
                for item, part in zip(target.elts, value, strict=False):
                    self.assign(item, part, scope, module)

    def value(self, node: ast.expr, scope: dict[str, Any], module: str) -> Any:
        """Return the value of an expression, or ``UNKNOWN``."""
        try:
            return self._value(node, scope, module)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError):
            return UNKNOWN

    def _value(  # noqa: C901, PLR0911, PLR0912 - one case per kind of expression
        self, node: ast.expr, scope: dict[str, Any], module: str
    ) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.name(node.id, scope, module)
            case ast.Attribute():
                return self.attribute(self.value(node.value, scope, module), node.attr)
            case ast.Call():
                return self.invoke(node, scope, module)
            case ast.List() | ast.Tuple() | ast.Set():
                items: list[Any] = []
                for item in node.elts:
                    if isinstance(item, ast.Starred):
                        items += list(self.value(item.value, scope, module))
                    else:
                        items.append(self.value(item, scope, module))
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.Dict():
                result: dict[Any, Any] = {}
                for key, item in zip(node.keys, node.values, strict=True):
                    if key is None:
                        inner = self.value(item, scope, module)
                        result |= inner if isinstance(inner, dict) else {}
                    else:
                        result[self.value(key, scope, module)] = self.value(item, scope, module)
                return result
            case ast.BinOp():
                left, right = (
                    self.value(node.left, scope, module),
                    self.value(node.right, scope, module),
                )
                if isinstance(left, Unknown) or isinstance(right, Unknown):
                    return UNKNOWN
                return BINARY[type(node.op)](left, right)
            case ast.UnaryOp():
                operand = self.value(node.operand, scope, module)
                if isinstance(operand, Unknown):
                    return UNKNOWN
                return (not operand) if isinstance(node.op, ast.Not) else -operand
            case ast.BoolOp():
                return self.logic(node, scope, module)
            case ast.Compare():
                return self.compare(node, scope, module)
            case ast.IfExp():
                test = self.value(node.test, scope, module)
                if isinstance(test, Unknown):
                    return UNKNOWN
                return self.value(node.body if test else node.orelse, scope, module)
            case ast.Subscript():
                return self.value(node.value, scope, module)[self.value(node.slice, scope, module)]
            case ast.JoinedStr():
                parts = [
                    self.value(p.value, scope, module)
                    if isinstance(p, ast.FormattedValue)
                    else self.value(p, scope, module)
                    for p in node.values
                ]
                return (
                    UNKNOWN
                    if any(isinstance(p, Unknown) for p in parts)
                    else "".join(map(str, parts))
                )
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.comprehension(node, scope, module)
            case _:
                return UNKNOWN

    def comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp,
        scope: dict[str, Any],
        module: str,
    ) -> Any:
        """Return the list that a comprehension makes."""
        loop = node.generators[0]
        items = self.value(loop.iter, scope, module)
        if isinstance(items, Unknown) or len(node.generators) > 1:
            return UNKNOWN
        result = []
        for item in items:
            inner = dict(scope)
            self.assign(loop.target, item, inner, module)
            if all(self.value(test, inner, module) for test in loop.ifs):
                result.append(self.value(node.elt, inner, module))
        return result

    def logic(self, node: ast.BoolOp, scope: dict[str, Any], module: str) -> Any:
        """Return what ``and`` or ``or`` gives, as far as it is known."""
        unknown = False
        value: Any = None
        for item in node.values:
            value = self.value(item, scope, module)
            if isinstance(value, Unknown):
                unknown = True
            elif bool(value) == isinstance(node.op, ast.Or):
                return value
        return UNKNOWN if unknown else value

    def compare(self, node: ast.Compare, scope: dict[str, Any], module: str) -> Any:
        """Return what a comparison gives."""
        left = self.value(node.left, scope, module)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self.value(item, scope, module)
            if isinstance(left, Unknown) or isinstance(right, Unknown):
                return UNKNOWN
            if not COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def name(self, name: str, scope: dict[str, Any], module: str) -> Any:
        """Return what a name stands for."""
        if name in scope:
            return scope[name]
        found = self.repository.resolve(module, name)
        if isinstance(found, tuple) and found[0] == "value":
            return self.value(found[1], {}, found[2])
        if isinstance(found, External) and found.path == f"{module}.{name}":
            return ("builtin", name) if name in BUILTINS or name in SPECIAL else UNKNOWN
        return found

    def attribute(self, owner: Any, name: str) -> Any:  # noqa: PLR0911 - one case per kind of owner
        """Return an attribute."""
        match owner:
            case Object():
                if name in owner.values:
                    return owner.values[name]
                return self.default(owner, name)
            case External():
                return External(f"{owner.path}.{name}")
            case ("module", path):
                found = self.repository.resolve(path, name)
                return (
                    self.value(found[1], {}, found[2])
                    if isinstance(found, tuple) and found[0] == "value"
                    else found
                )
            case dict() | list() | str() | set():
                return ("method", owner, name)
            case (ast.ClassDef() as node, _):
                if node.name == "AutoBridge":
                    return ("method", Object("AutoBridge", {}), name)
                return External(f"{node.name}.{name}")
            case _:
                return UNKNOWN

    def default(self, owner: Object, name: str) -> Any:
        """Return a class default, or a bound method."""
        if owner.kind == "Model":
            sizes = architecture(owner)
            if name in sizes:
                return sizes[name]
        kind = CLASSES.get(owner.kind)
        if kind is None:
            return ("method", owner, name)
        values = self.repository.defaults(kind)
        if name not in values:
            return ("method", owner, name)
        node, module = values[name]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "field"
        ):
            for keyword in node.keywords:
                if keyword.arg == "default":
                    return self.value(keyword.value, {}, module)
            return UNKNOWN
        return self.value(node, {}, module)

    def invoke(self, node: ast.Call, scope: dict[str, Any], module: str) -> Any:
        """Evaluate the arguments of a call and apply it."""
        function = self.value(node.func, scope, module)
        args: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self.value(argument.value, scope, module)
                args += list(inner) if isinstance(inner, list | tuple) else []
            else:
                args.append(self.value(argument, scope, module))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            item = self.value(keyword.value, scope, module)
            if keyword.arg is None:
                kwargs |= item if isinstance(item, dict) else {}
            else:
                kwargs[keyword.arg] = item
        return self.apply(function, args, kwargs)

    def apply(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Apply a function, a class or a method."""
        match function:
            case (ast.FunctionDef(), _):
                return self.call(function, args, kwargs)
            case (ast.ClassDef() as node, _):
                CLASSES[node.name] = function
                return self.construct(node.name, function, args, kwargs)
            case ("builtin", name):
                return self.builtin(name, args, kwargs)
            case ("method", owner, name):
                return self.method(owner, name, args, kwargs)
            case External():
                return self.external(function.path, args, kwargs)
            case _:
                return UNKNOWN

    def construct(
        self, name: str, kind: tuple[ast.ClassDef, str], args: list[Any], kwargs: dict[str, Any]
    ) -> Object:
        """Return an instance."""
        fields = list(self.repository.defaults(kind))
        values = dict(zip(fields, args, strict=False)) | kwargs
        if name == "AutoBridge":
            return Object(name, {})
        return Object(name, values)

    def external(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what a name from outside gives, where that is plain."""
        last = path.rpartition(".")[2]
        if last in ("deepcopy", "copy") and args:
            return copy.deepcopy(args[0])
        if last == "replace" and args and isinstance(args[0], Object):
            return Object(args[0].kind, {**args[0].values, **kwargs})
        if last in {"from_hf_pretrained", "from_auto_config"}:
            return Object(
                "HuggingFace", {"hf_model": args[0] if args else kwargs.get("path", UNKNOWN)}
            )
        if last[:1].isupper():
            return Object(last, dict(kwargs))
        return UNKNOWN

    def method(self, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method."""
        if isinstance(owner, Object):
            if name in ("from_hf_pretrained", "from_auto_config") or owner.kind == "HuggingFace":
                model = (
                    args[0]
                    if name.startswith("from_") and args
                    else owner.values.get("hf_model", UNKNOWN)
                )
                kind = "HuggingFace" if name.startswith("from_") else "Model"
                return Object(kind, {"hf_model": model})
            if owner.kind == "Model" and name.startswith("to_"):
                return owner
            kind = CLASSES.get(owner.kind)
            for item in kind[0].body if kind else ():
                if isinstance(item, ast.FunctionDef) and item.name == name and kind:
                    return self.call((item, kind[1]), [owner, *args], kwargs)
            return UNKNOWN
        if isinstance(owner, dict | list | str | set) and not name.startswith("_"):
            return getattr(owner, name)(*args, **kwargs)
        return UNKNOWN

    def builtin(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a builtin."""
        if name in SPECIAL:
            return SPECIAL[name](self, *args)
        if any(isinstance(a, Unknown) for a in args):
            return UNKNOWN
        return BUILTINS[name](*args, **kwargs)


EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


def architecture(model: Object) -> dict[str, Any]:
    """Return what is known about the sizes of a model from Hugging Face."""
    table: dict[str, Any] = json.loads(ARCHITECTURES.read_text(encoding="utf-8"))
    config = table.get(str(model.values.get("hf_model")), {})
    if "model" in config:
        return dict(config["model"])
    experts = next((config[name] for name in EXPERTS if name in config), None)
    more = {"num_moe_experts": experts} if config else {}
    heads = {"mtp_num_layers": config.get("num_nextn_predict_layers")} if config else {}
    layers = {"num_layers": config["num_hidden_layers"]} if config else {}
    return {**more, **heads, **layers, "cuda_graph_impl": "none"}


def special_getattr(run: Interpreter, owner: Any, name: str, *default: Any) -> Any:
    """``getattr``."""
    value = run.attribute(owner, name)
    missing = isinstance(value, tuple) and value[:1] == ("method",)
    return (default[0] if default else UNKNOWN) if missing else value


def special_setattr(_: Interpreter, owner: Any, name: str, value: Any) -> None:
    """``setattr``."""
    if isinstance(owner, Object):
        owner.values[name] = value


def special_isinstance(_: Interpreter, value: Any, kind: Any) -> Any:
    """``isinstance`` by class name."""
    names = kind if isinstance(kind, tuple) and not isinstance(kind[0], ast.AST | str) else (kind,)
    found = set()
    for item in names:
        match item:
            case ("builtin", name):
                found.add(name)
            case (ast.ClassDef() as node, _):
                found.add(node.name)
            case External():
                found.add(item.path.rpartition(".")[2])
    if isinstance(value, Object):
        return value.kind in found
    return type(value).__name__ in found


SPECIAL: dict[str, Callable[..., Any]] = {
    "getattr": special_getattr,
    "setattr": special_setattr,
    "isinstance": special_isinstance,
    "hasattr": lambda _, owner, *__: isinstance(owner, Object),
    "print": lambda *_: None,
    "deepcopy": lambda _, value: copy.deepcopy(value),
}
CLASSES: dict[str, tuple[ast.ClassDef, str]] = {}
