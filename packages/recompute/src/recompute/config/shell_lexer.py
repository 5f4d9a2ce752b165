"""The words of a shell script, as far as launch scripts need them. Nothing is ever run.

Knows quotes, line continuations, comments, command separators, redirections, here-documents, ``NAME=(`` arrays
and the expansions ``$NAME``, ``${NAME}``, ``${NAME:-word}``, ``${NAME[@]}`` and ``$((1 + 2))``. What only a shell
can know (``$(date)``, an argument ``$1`` without a default) becomes a marker with its name in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recompute.errors import ConfigError

UNKNOWN_OPEN: Final = "\ue000"
UNKNOWN_CLOSE: Final = "\ue001"
"""A value that only the shell knows stands between these two characters, by name."""
MAX_SCRIPT: Final = 256 << 10
"""Bytes; no launch script comes near this."""
MAX_WORDS: Final = 50_000
MAX_EXPANDED: Final = 4 << 20

_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
_ORDINARY: Final = re.compile(r"[^'\"`\\$();&|<>\n \t]+")
"""A run of characters of a word that mean only themselves; ``(`` after ``=`` starts an array."""
_OPERATORS: Final = frozenset((";", "&", "|", "(", ")", "<", ">", "\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One raw word with its quotes still on, or an operator."""

    text: str
    line: int
    operator: bool = False


def lex(text: str, first_line: int = 1) -> Iterator[Token]:
    """Yield raw words and operators; comments are gone, continued lines are joined.

    Args:
        text: The script.
        first_line: Line number of its first line.

    Raises:
        ConfigError: ``shell-syntax`` for a quote or ``$(`` that does not end.
    """
    return _Lexer(text, first_line).tokens()


class _Lexer:
    def __init__(self, text: str, first_line: int) -> None:
        self.text = text.replace("\r\n", "\n")
        self.end = len(self.text)
        self.at = 0
        self.line = first_line
        self.heredocs: list[str] = []

    def tokens(self) -> Iterator[Token]:
        while self.at < self.end:
            char = self.text[self.at]
            if char == "\\" and self.text[self.at : self.at + 2] == "\\\n":
                self._advance(2)
            elif char in " \t":
                self.at += 1
            elif char == "#":
                self._comment()
            elif char in _OPERATORS:
                yield from self._operator(char)
            else:
                yield self._word()

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = self.end if end < 0 else end

    def _operator(self, char: str) -> Iterator[Token]:
        match = _HEREDOC.match(self.text, self.at)
        if char == "<" and match is not None:
            self.heredocs.append(match[2])
            self._advance(len(match[0]))
            return
        yield Token(text=char, line=self.line, operator=True)
        self._advance(1)
        if char == "\n" and self.heredocs:
            self._skip_heredocs()

    def _skip_heredocs(self) -> None:
        for name in self.heredocs:
            while self.at < self.end:
                stop = self.text.find("\n", self.at)
                stop = self.end if stop < 0 else stop
                row = self.text[self.at : stop].strip()
                self._advance(min(stop + 1, self.end) - self.at)
                if row == name:
                    break
        self.heredocs.clear()

    def _word(self) -> Token:
        start, line = self.at, self.line
        while self.at < self.end:
            char = self.text[self.at]
            if char in "'\"`":
                self._quoted(char)
            elif char == "\\":
                self._advance(2)
            elif self.text.startswith(("$(", "${"), self.at):
                self._group()
            elif (
                (char == "(" and self.text[self.at - 1] == "=")
                or char in _OPERATORS
                or char in " \t"
            ):
                break
            else:
                self.at += 1
        return Token(text=self.text[start : self.at], line=line)

    def _quoted(self, quote: str) -> None:
        line, at = self.line, self.at + 1
        while at < self.end and self.text[at] != quote:
            at += 2 if self.text[at] == "\\" and quote == '"' else 1
        if at >= self.end:
            raise _syntax(line, f"a {quote} that does not end")
        self._advance(at + 1 - self.at)

    def _group(self) -> None:
        opening = self.text[self.at + 1]
        closing = ")" if opening == "(" else "}"
        line, depth, at = self.line, 0, self.at + 1
        while at < self.end:
            if self.text[at] == opening:
                depth += 1
            elif self.text[at] == closing:
                depth -= 1
                if depth == 0:
                    self._advance(at + 1 - self.at)
                    return
            at += 1
        raise _syntax(line, f"a ${opening} that does not end")


def _syntax(line: int, problem: str) -> ConfigError:
    return ConfigError(
        "shell-syntax",
        f"line {line} of the script has {problem}",
        hint="give the arguments alone, one flag per line",
        data={"line": line},
    )


def unknown(name: str) -> str:
    """Return the marker of a value that only the shell knows."""
    # Letters, digits and underscores only: the marker must survive being read as shell again.
    return f"{UNKNOWN_OPEN}{_NOT_NAME.sub('_', name[:60]).strip('_')}{UNKNOWN_CLOSE}"


def unknown_name(text: str) -> str | None:
    """Return the name inside the first marker of a text."""
    _, opened, rest = text.partition(UNKNOWN_OPEN)
    return rest.partition(UNKNOWN_CLOSE)[0] if opened else None
