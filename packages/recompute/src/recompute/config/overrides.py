"""Hydra-style overrides: ``section.field=value``, ``+a.b=1``, ``++a.b=1``, ``~a.b``, ``ddp=null``.

Values follow Hydra's grammar as far as a job needs it: null, booleans, numbers, words, quoted text,
lists ``[a,b]`` and mappings ``{a: 1}``. A word may hold spaces only inside quotes.

Example: ``model.recompute_modules=[mlp,'core_attn']``; ``optimizer=null``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from recompute.config.draft import Draft
from recompute.config.mixed_precision import recipe_fields
from recompute.config.schema import FrozenValue
from recompute.config.sections import peft_scheme
from recompute.config.yaml_source import scalar
from recompute.errors import ConfigError

MAX_TEXT: Final = 100_000
MAX_DEPTH: Final = 16
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


def apply_overrides(draft: Draft, overrides: Iterable[str]) -> None:
    """Apply overrides in order; the last one wins.

    Args:
        draft: Changed in place; fields are recorded as given by ``override``.
        overrides: As on a command line.

    Raises:
        ConfigError: ``bad-override``.
    """
    for text in overrides:
        _apply(draft, text)


def _apply(draft: Draft, text: str) -> None:
    if len(text) > MAX_TEXT:
        _fail(text, "is too long")
    delete = text.startswith("~")
    name, equals, value_text = text.lstrip("+~").partition("=")
    parts = name.strip().split(".")
    if not all(_NAME.fullmatch(part) for part in parts):
        _fail(text, "does not start with section.field")
    if delete:
        _delete(draft, parts, text)
        return
    if not equals:
        _fail(
            text, "has no '='", f"write {text}=VALUE in one word, or the job before its overrides"
        )
    value = parse_value(value_text, text)
    if len(parts) == 1:
        _set_section(draft, parts[0], value)
    else:
        _set_field(draft, parts, value)


def _delete(draft: Draft, parts: list[str], text: str) -> None:
    section = parts[0]
    if len(parts) == 1:
        if section not in draft.sections and section not in draft.whole:
            _fail(text, f"deletes {section}, which the job does not give")
        draft.set_absent(section, "override")
    elif len(parts) > 2 or not draft.drop(section, parts[1]):
        _fail(text, f"deletes {'.'.join(parts)}, which the job does not give")


def _set_section(draft: Draft, section: str, value: FrozenValue) -> None:
    if value is None:
        draft.set_absent(section, "override")
    elif section == "peft" and isinstance(value, str):
        draft.set("peft", "scheme", peft_scheme(value), "override")
    elif isinstance(value, dict):
        draft.absent.pop(section, None)
        for name, item in value.items():
            draft.set(section, name, item, "override")
    else:
        draft.sections.pop(section, None)
        draft.absent.pop(section, None)
        draft.whole[section] = value
        draft.where[section] = "override"


def _set_field(draft: Draft, parts: list[str], value: FrozenValue) -> None:
    if parts[:2] == ["model", "transformer"] and len(parts) > 2:
        parts = ["model", *parts[2:]]
    section, name, *deeper = parts
    if section == "env_vars":
        draft.environment[name] = str(value)
        return
    if deeper:
        base = draft.get(section, name)
        value = _nested(base if isinstance(base, dict) else {}, deeper, value)
    recipe = draft.whole.pop(section, None)
    if section == "mixed_precision" and isinstance(recipe, str):
        for field, item in recipe_fields(recipe).items():
            draft.set(section, field, item, recipe)
    draft.set(section, name, value, "override")


def _nested(base: dict[str, Any], path: list[str], value: FrozenValue) -> dict[str, Any]:
    head, *rest = path
    inner = base.get(head)
    item = _nested(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {**base, head: item}


_FORM = "write section.field=value, for example model.recompute_modules=[mlp] or ddp=null"


def _fail(text: str, problem: str, hint: str = _FORM) -> NoReturn:
    raise ConfigError(
        "bad-override",
        f"override {text[:80]!r} {problem}",
        hint=hint,
        data={"override": text[:200]},
    )


def parse_value(text: str, whole: str = "") -> FrozenValue:
    """Read the value of an override.

    Raises:
        ConfigError: ``bad-override`` or ``huge-number``.
    """
    parser = _Values(text.strip(), whole or text)
    value = parser.value(0)
    if parser.position != len(parser.text):
        _fail(parser.whole, f"has {parser.text[parser.position :][:20]!r} after its value")
    return value


class _Values:
    """Recursive descent over one value, bounded in depth."""

    def __init__(self, text: str, whole: str) -> None:
        self.text = text
        self.whole = whole
        self.position = 0

    def value(self, depth: int) -> FrozenValue:
        if depth > MAX_DEPTH:
            _fail(self.whole, "is nested too deeply")
        match self._peek():
            case "[":
                return self._list(depth)
            case "{":
                return self._mapping(depth)
            case "'" | '"':
                return self._quoted()
            case _:
                return scalar(self._word(",]}" if depth else ""))

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _space(self) -> None:
        while self._peek().isspace():
            self.position += 1

    def _list(self, depth: int) -> tuple[FrozenValue, ...]:
        items: list[FrozenValue] = []
        self.position += 1
        self._space()
        while self._peek() != "]":
            items.append(self.value(depth + 1))
            self._separator("]")
        self.position += 1
        return tuple(items)

    def _mapping(self, depth: int) -> dict[str, FrozenValue]:
        items: dict[str, FrozenValue] = {}
        self.position += 1
        self._space()
        while self._peek() != "}":
            key = self._quoted() if self._peek() in {"'", '"'} else self._word(":,}")
            if self._peek() != ":":
                _fail(self.whole, "has a mapping without ':'")
            self.position += 1
            self._space()
            items[str(key)] = self.value(depth + 1)
            self._separator("}")
        self.position += 1
        return items

    def _separator(self, close: str) -> None:
        self._space()
        if self._peek() == ",":
            self.position += 1
            self._space()
        elif self._peek() != close:
            _fail(self.whole, f"lacks {close!r}")

    def _quoted(self) -> str:
        quote = self._peek()
        end = self.position + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            _fail(self.whole, "has a quote that does not end")
        raw = self.text[self.position + 1 : end]
        self.position = end + 1
        return _ESCAPE.sub(r"\1", raw)

    def _word(self, stops: str) -> str:
        start = self.position
        while self._peek() and self._peek() not in stops:
            self.position += 1
        word = self.text[start : self.position].strip()
        if not word and stops:
            _fail(self.whole, "has an empty item")
        return word
