"""Expansion of shell words over the variables that a script itself defines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from recompute.config.shell_lexer import MAX_EXPANDED, Token, unknown, unknown_name
from recompute.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!]")
_BRACED: Final = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[0-9@*#?]+)(?P<array>\[[@*]\])?(?:(?P<op>:?[-=+?])(?P<word>.*))?",
    re.DOTALL,
)
_ARITHMETIC: Final = re.compile(r"\s*(\d{1,18}|[()+*/%-])")
MAX_DEPTH: Final = 24


@dataclass(slots=True)
class Variables:  # not a value: the state of a script while it is read
    """Variables of a script: text, or a list of words for an array."""

    text: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Token]] = field(default_factory=dict)
    expanded: int = 0

    def expand(self, token: Token) -> list[Token]:
        """Return the words that one raw word becomes: quotes removed, variables replaced."""
        array = self._whole_array(token.text)
        if array is not None:
            return array
        pieces: list[tuple[str, bool]] = self._pieces(token.text, 0)
        words: list[str] = []
        current: str | None = None
        for text, quoted in pieces:
            if quoted:
                current = (current or "") + text
                continue
            parts = re.split(r"([ \t\n]+)", text)
            for index, part in enumerate(parts):
                if index % 2:
                    if current is not None:
                        words.append(current)
                    current = None
                elif part:
                    current = (current or "") + part
        if current is not None:
            words.append(current)
        return [Token(text=word, line=token.line) for word in words]

    def value(self, raw: str) -> str:
        """Return the text of the right side of an assignment: no splitting."""
        return "".join(text for text, _ in self._pieces(raw, 0))

    def _whole_array(self, raw: str) -> list[Token] | None:
        match = re.fullmatch(r'"?\$\{([A-Za-z_]\w*)\[[@*]\]\}"?', raw)
        if match is None or match[1] not in self.arrays:
            return None
        words = self.arrays[match[1]]
        if raw.startswith('"'):
            return words
        return [Token(text=part, line=word.line) for word in words for part in word.text.split()]

    def _count(self, text: str) -> str:
        self.expanded += len(text)
        if self.expanded > MAX_EXPANDED:
            raise ConfigError(
                "shell-limit",
                "the script's variables expand without end",
                hint="give the arguments alone, one flag per line",
                data={"limit_bytes": MAX_EXPANDED},
            )
        return text

    def _pieces(self, raw: str, depth: int) -> list[tuple[str, bool]]:
        """Split a raw word into (text, quoted) pieces."""
        pieces: list[tuple[str, bool]] = []
        at = 0
        while at < len(raw):
            char = raw[at]
            if char == "'":
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                pieces.append((raw[at + 1 : end], True))
                at = end + 1
            elif char == '"':
                at = self._double_quoted(raw, at + 1, pieces, depth)
            elif char == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end
                pieces.append((unknown(raw[at + 1 : end]), False))
                at = end + 1
            elif char == "\\":
                if raw[at + 1 : at + 2] != "\n":
                    pieces.append((raw[at + 1 : at + 2], True))
                at += 2
            elif char == "$":
                text, at = self._dollar(raw, at, depth)
                pieces.append((text, False))
            else:
                end = at
                while end < len(raw) and raw[end] not in "'\"\\$`":
                    end += 1
                pieces.append((raw[at:end], False))
                at = end
        return pieces

    def _double_quoted(self, raw: str, at: int, pieces: list[tuple[str, bool]], depth: int) -> int:
        text = ""
        while at < len(raw) and raw[at] != '"':
            if raw[at] == "\\" and raw[at + 1 : at + 2] in {'"', "\\", "$", "`", "\n"}:
                text += "" if raw[at + 1] == "\n" else raw[at + 1]
                at += 2
            elif raw[at] == "$":
                value, at = self._dollar(raw, at, depth)
                text += value
            else:
                text += raw[at]
                at += 1
        pieces.append((text, True))
        return at + 1

    def _dollar(self, raw: str, at: int, depth: int) -> tuple[str, int]:
        """Expand what starts with ``$`` at ``at``; return the text and where it ends."""
        if depth > MAX_DEPTH:
            return unknown("nested too deeply"), len(raw)
        if raw.startswith("$((", at):
            end = _closing(raw, at + 1, "(", ")")
            return self._count(self._arithmetic(raw[at + 3 : end - 1], depth)), end + 1
        if raw.startswith("$(", at):
            end = _closing(raw, at + 1, "(", ")")
            return unknown("$(" + raw[at + 2 : end] + ")"), end + 1
        if raw.startswith("${", at):
            end = _closing(raw, at + 1, "{", "}")
            return self._count(self._braced(raw[at + 2 : end], depth)), end + 1
        match = _NAME.match(raw, at + 1)
        if match is None:
            return "$", at + 1
        return self._count(self._lookup(match[0])), match.end()

    def _lookup(self, name: str) -> str:
        if name in self.arrays:
            return " ".join(token.text for token in self.arrays[name])
        return self.text.get(name, unknown(name))

    def _braced(self, inner: str, depth: int) -> str:
        match = _BRACED.fullmatch(inner)
        if match is None:
            return unknown(inner)
        name, operator = match["name"], match["op"]
        known = name in self.text or name in self.arrays
        if operator is None:
            return self._lookup(name)
        present = known and bool(self._lookup(name) or ":" not in operator)
        word = "".join(text for text, _ in self._pieces(match["word"], depth + 1))
        if operator.endswith("+"):
            return word if present else ""
        if operator.endswith("?") or present:
            return self._lookup(name)
        if operator.endswith("="):
            self.text[name] = word
        return word

    def _arithmetic(self, expression: str, depth: int) -> str:
        plain = "".join(text for text, _ in self._pieces(expression, depth + 1))
        plain = re.sub(r"[A-Za-z_]\w*", lambda m: self._lookup(m[0]), plain)
        missing = unknown_name(plain)
        if missing is not None:
            return unknown(missing)
        value = _Arithmetic(plain).value()
        return unknown(f"$(({expression}))") if value is None else str(value)


def _closing(raw: str, at: int, opening: str, closing: str) -> int:
    depth = 0
    for index in range(at, len(raw)):
        if raw[index] == opening:
            depth += 1
        elif raw[index] == closing:
            depth -= 1
            if depth == 0:
                return index
    return len(raw)


class _Arithmetic:
    """Integers with ``+ - * / %`` and parentheses; ``None`` for anything else."""

    def __init__(self, text: str) -> None:
        self.tokens = _ARITHMETIC.findall(text) if len(text) < 1000 else []
        if "".join(self.tokens) != re.sub(r"\s", "", text):
            self.tokens = []

    def value(self) -> int | None:
        try:
            result = self._sum(0)
        except (ValueError, IndexError, ZeroDivisionError):
            return None
        return result if not self.tokens and abs(result) < 1 << 62 else None

    def _sum(self, depth: int) -> int:
        value = self._product(depth)
        while self.tokens and self.tokens[0] in "+-":
            sign = 1 if self.tokens.pop(0) == "+" else -1
            value += sign * self._product(depth)
        return value

    def _product(self, depth: int) -> int:
        value = self._atom(depth)
        while self.tokens and self.tokens[0] in "*/%":
            operator, other = self.tokens.pop(0), self._atom(depth)
            if operator == "*":
                value = value * other if abs(value) < 1 << 62 else 1 << 62
            else:
                value = value // other if operator == "/" else value % other
        return value

    def _atom(self, depth: int) -> int:
        token = self.tokens.pop(0)
        if token == "(" and depth < MAX_DEPTH:
            value = self._sum(depth + 1)
            if self.tokens.pop(0) != ")":
                raise ValueError
            return value
        return -self._atom(depth + 1) if token == "-" and depth < MAX_DEPTH else int(token)
