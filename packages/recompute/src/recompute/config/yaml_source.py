"""YAML as plain values, bounded in size, depth and expansion, with the line of each key.

Works on the parser's events and never on its recursive composer, so that depth costs nothing. Rules:

- depth at most :data:`MAX_DEPTH`; nodes, aliases expanded, at most :data:`MAX_NODES`;
- one document; keys are scalars, each given once; ``<<`` merges mappings, given keys win;
- tags other than YAML's own are refused: nothing here ever names a Python object;
- scalars as PyYAML's safe loader reads them, and ``1e-4`` is a number as OmegaConf reads it.

Example: ``parse_yaml("a: {b: 1}").value == {"a": {"b": 1}}``; lists become tuples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import yaml

from recompute.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH: Final = 48
MAX_NODES: Final = 100_000
MAX_DIGITS: Final = 40
_FEW_LEVELS: Final = "a job has a few levels"

_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    _CORE + name for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
)
_TRUE: Final = frozenset(("yes", "true", "on"))
_FALSE: Final = frozenset(("no", "false", "off"))
_BOOL: Final = re.compile(
    r"(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)"
)
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_INT: Final = re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)"
)
_SPECIAL: Final = {
    f"{sign}.{name}": float(sign + name.lower())
    for sign in ("", "-", "+")
    for name in ("inf", "Inf", "INF", "nan", "NaN", "NAN")
    if not (sign and name.lower() == "nan")
}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """One document: its value, and the line (from 1) of each key down to the third level."""

    value: Any
    lines: Mapping[tuple[str, ...], int]


def parse_yaml(text: str, path: str = "-") -> YamlDocument:
    """Read one YAML document.

    Args:
        text: The document.
        path: Named in messages.

    Raises:
        ConfigError: ``yaml-syntax``, ``yaml-tag``, ``yaml-limit``, ``yaml-alias``,
            ``yaml-key``, ``duplicate-key`` or ``huge-number``.
    """
    loader = _Loader(text)
    try:
        return _Reader(loader, path).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        if "nesting depth" in problem:
            _fail(path, line, "yaml-limit", f"nested deeper than {MAX_DEPTH}", _FEW_LEVELS)
        if _tab_indents(text, line):
            problem, hint = "a tab in the indentation", "indent with spaces"
            _fail(path, line, "yaml-syntax", f"not YAML: {problem}", hint)
        _fail(path, line, "yaml-syntax", f"not YAML: {problem}", "check quotes and indentation")
    finally:
        loader.dispose()


def _tab_indents(text: str, line: int | None) -> bool:
    """Say whether a line, counted from 1, begins with white space that holds a tab."""
    lines = text.splitlines()
    if line is None or line > len(lines):
        return False
    start = lines[line - 1]
    return "\t" in start[: len(start) - len(start.lstrip(" \t"))]


def scalar(text: str) -> Any:
    """Read one plain scalar: null, boolean, number or text."""
    if text in _NULL:
        return None
    if _BOOL.fullmatch(text):
        return text.lower() in _TRUE
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        return _integer(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ConfigError(
            "huge-number",
            f"a number of {len(text)} digits",
            hint="no field of a job is that large",
            data={"digits": len(text)},
        )
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if digits.startswith(("0x", "0b")):
        return sign * int(digits, 0)
    octal = len(digits) > 1 and digits.startswith("0")
    return sign * int(digits or "0", 8 if octal else 10)


def _fail(path: str, line: int | None, code: str, message: str, hint: str) -> NoReturn:
    where = path if line is None else f"{path}:{line}"
    raise ConfigError(
        code, f"{where}: {message}", hint=hint, data={"path": path, "line": line}
    ) from None


class _Frame:
    """A collection being read: its items, its pending key, the number of nodes in it."""

    __slots__ = ("anchor", "is_map", "items", "key", "line", "merged", "pairs", "path", "size")

    def __init__(
        self, *, is_map: bool, anchor: str | None, line: int, path: tuple[str, ...]
    ) -> None:
        self.is_map = is_map
        self.anchor = anchor
        self.line = line
        self.path = path
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}
        self.merged: list[dict[Any, Any]] = []
        self.key: Any = _Reader.NO_KEY
        self.size = 1

    def value(self) -> Any:
        if not self.is_map:
            return tuple(self.items)
        result: dict[Any, Any] = {}
        for base in reversed(self.merged):
            result.update(base)
        result.update(self.pairs)
        return result


class _Reader:
    """Turns events into one value, counting as it goes."""

    NO_KEY: Final = object()
    MERGE: Final = object()

    def __init__(self, loader: Any, path: str) -> None:
        self.loader = loader
        self.path = path
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.lines: dict[tuple[str, ...], int] = {}
        self.nodes = 0
        self.documents = 0
        self.result: Any = None

    def document(self) -> YamlDocument:
        while True:
            event = self.loader.get_event()
            line = event.start_mark.line + 1
            match event:
                case yaml.StreamEndEvent():
                    return YamlDocument(value=self.result, lines=self.lines)
                case yaml.DocumentStartEvent():
                    self._count_document(line)
                case yaml.AliasEvent():
                    self._alias(event.anchor, line)
                case yaml.ScalarEvent():
                    self._scalar(event, line)
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    self._open(event, line)
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._close()
                case _:
                    continue

    def _count_document(self, line: int) -> None:
        self.documents += 1
        if self.documents > 1:
            _fail(self.path, line, "yaml-syntax", "a second document", "give one job per file")

    def _check_tag(self, tag: str | None, line: int) -> None:
        if tag is not None and tag not in _TAGS and tag != "!":
            shown = tag[:60]
            _fail(
                self.path,
                line,
                "yaml-tag",
                f"the tag {shown!r} is not read",
                "write plain YAML values; objects are written as _target_ entries",
            )

    def _scalar(self, event: Any, line: int) -> None:
        self._check_tag(event.tag, line)
        merge = event.implicit[0] and event.value == "<<" and self._expects_key()
        if merge:
            self.stack[-1].key = self.MERGE
            return
        try:
            value = _tagged(event)
        except (ConfigError, ValueError) as error:
            _fail(self.path, line, "huge-number", str(error), "no field of a job is that large")
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self._put(value, 1, line)

    def _expects_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].is_map and self.stack[-1].key is self.NO_KEY

    def _open(self, event: Any, line: int) -> None:
        self._check_tag(event.tag, line)
        if len(self.stack) >= MAX_DEPTH:
            _fail(self.path, line, "yaml-limit", f"nested deeper than {MAX_DEPTH}", _FEW_LEVELS)
        is_map = isinstance(event, yaml.MappingStartEvent)
        if self._expects_key():
            _fail(self.path, line, "yaml-key", "a key that is not a scalar", "keys are field names")
        key_path = (*self.stack[-1].path, str(self.stack[-1].key)) if self.stack else ()
        self.stack.append(_Frame(is_map=is_map, anchor=event.anchor, line=line, path=key_path))

    def _close(self) -> None:
        frame = self.stack.pop()
        value = frame.value()
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (value, frame.size)
        self._put(value, frame.size, frame.line)

    def _alias(self, anchor: str | None, line: int) -> None:
        if anchor is None or anchor not in self.anchors:
            _fail(
                self.path,
                line,
                "yaml-alias",
                f"the alias *{anchor} stands before or inside its anchor",
                "define the anchor first",
            )
        value, size = self.anchors[anchor]
        self._put(value, size, line)

    def _put(self, value: Any, size: int, line: int) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES * 4 or size > MAX_NODES:
            self._too_many(line)
        if not self.stack:
            self.result = value
            return
        frame = self.stack[-1]
        frame.size += size
        if frame.size > MAX_NODES:
            self._too_many(line)
        if not frame.is_map:
            frame.items.append(value)
        elif frame.key is self.NO_KEY:
            self._set_key(frame, value, line)
        else:
            self._set_value(frame, value, line)

    def _too_many(self, line: int) -> NoReturn:
        _fail(
            self.path,
            line,
            "yaml-limit",
            f"more than {MAX_NODES} values once aliases are expanded",
            "give the job file itself; write out what the aliases stand for",
        )

    def _set_key(self, frame: _Frame, key: Any, line: int) -> None:
        if not isinstance(key, str | int | float | bool | None):
            _fail(self.path, line, "yaml-key", "a key that is not a scalar", "keys are field names")
        # Megatron-LM's functional tests repeat flags; there, as on a command line, the last one wins.
        if key in frame.pairs and not str(key).startswith("--"):
            _fail(
                self.path,
                line,
                "duplicate-key",
                f"{str(key)[:60]!r} is given twice",
                "keep one of the two",
            )
        frame.key = key
        if len(frame.path) < 3:
            self.lines[(*frame.path, str(key))] = line

    def _set_value(self, frame: _Frame, value: Any, line: int) -> None:
        if frame.key is not self.MERGE:
            frame.pairs[frame.key] = value
        else:
            bases = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(base, dict) for base in bases):
                _fail(self.path, line, "yaml-key", "<< merges mappings only", "write out the keys")
            frame.merged.extend(bases)
        frame.key = self.NO_KEY


def _tagged(event: Any) -> Any:
    if event.tag is None or event.tag == "!":
        return scalar(event.value) if event.implicit[0] and event.tag is None else event.value
    name = event.tag.removeprefix(_CORE)
    match name:
        case "int":
            return _integer(event.value.replace("_", ""))
        case "float":
            return float(event.value) if len(event.value) < MAX_DIGITS else event.value
        case "bool":
            return event.value.lower() in _TRUE
        case "null":
            return None
        case _:
            return event.value
