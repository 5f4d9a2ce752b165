"""Which layers are of a kind: Megatron's ``moe_layer_freq`` and its relatives, read without eval.

Megatron takes an integer (every n-th layer), a list with one 0 or 1 per layer, or a Python expression
such as ``[0]+[1]*7`` or ``([1]*2+[0])*4``. Here the expression has its own grammar and its own limits::

    sum     = product { "+" product }
    product = atom { "*" number } | number "*" atom
    atom    = "[" [ number { "," number } [ "," ] ] "]" | "(" sum ")" | number

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py ``moe_freq_type``.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from recompute.errors import ConfigError

MAX_LAYERS: Final = 10_000
MAX_DEPTH: Final = 32
MAX_TEXT: Final = 50_000

_TOKEN: Final = re.compile(r"\s*(-?\d{1,7}|[][()*+,])")


def parse_layer_frequency(text: str, field: str) -> int | tuple[int, ...]:
    """Read an integer, a list or an expression of lists.

    Args:
        text: For example ``2``, ``[0,1,1]`` or ``([1]*2+[0])*4``.
        field: Named in messages.

    Raises:
        ConfigError: ``bad-layer-frequency``.
    """
    value = _Parser(text, field).parse()
    return value if isinstance(value, int) else tuple(value)


def layer_kinds(frequency: int | tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """Return one 0 or 1 per layer: an integer n marks layers 0, n, 2n, ...

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/models/gpt/gpt_layer_specs.py
    ``get_gpt_decoder_block_spec``.
    """
    if isinstance(frequency, int):
        return tuple(int(frequency > 0 and index % frequency == 0) for index in range(num_layers))
    return frequency


class _Parser:
    """Recursive descent over the tokens, bounded in depth and in the length of what it builds."""

    def __init__(self, text: str, field: str) -> None:
        self.text = text[:60]
        self.field = field
        self.tokens = self._tokenize(text)
        self.position = 0

    def parse(self) -> int | list[int]:
        value = self._sum(0)
        if self.position != len(self.tokens):
            self._fail("ends too early")
        return value

    def _tokenize(self, text: str) -> list[str]:
        if len(text) > MAX_TEXT:
            self._fail("is too long")
        tokens, position, end = [], 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position, end)
            if match is None:
                self._fail(f"has {text[position : position + 10]!r} in it")
            tokens.append(match[1])
            position = match.end()
        return tokens

    def _fail(self, problem: str) -> NoReturn:
        raise ConfigError(
            "bad-layer-frequency",
            f"{self.field}: {self.text!r} {problem}",
            hint="write a list such as [0,1,1], an integer, or an expression such as [0]+[1]*7",
            data={"field": self.field, "value": self.text},
        )

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.position += 1
        return token

    def _sum(self, depth: int) -> int | list[int]:
        if depth > MAX_DEPTH:
            self._fail("is nested too deeply")
        value = self._product(depth)
        while self._peek() == "+":
            self.position += 1
            other = self._product(depth)
            if isinstance(value, list) and isinstance(other, list):
                value = self._bounded([*value, *other])
            elif isinstance(value, int) and isinstance(other, int):
                value += other
            else:
                self._fail("adds a list and a number")
        return value

    def _product(self, depth: int) -> int | list[int]:
        value = self._atom(depth)
        while self._peek() == "*":
            self.position += 1
            value = self._multiply(value, self._atom(depth))
        return value

    def _multiply(self, left: int | list[int], right: int | list[int]) -> int | list[int]:
        if isinstance(left, int) and isinstance(right, int):
            return min(left * right, 10**9)
        if isinstance(left, list) and isinstance(right, list):
            self._fail("multiplies two lists")
        items, times = (left, right) if isinstance(left, list) else (right, left)
        assert isinstance(items, list)
        assert isinstance(times, int)
        if len(items) * max(times, 0) > MAX_LAYERS:
            self._fail(f"is longer than {MAX_LAYERS} layers")
        return items * times

    def _atom(self, depth: int) -> int | list[int]:
        token = self._next()
        if token == "(":
            value = self._sum(depth + 1)
            self._expect(")")
            return value
        if token == "[":
            return self._list()
        if not token.lstrip("-").isdigit():
            self._fail(f"has {token!r} where a list should stand" if token else "ends too early")
        return int(token)

    def _list(self) -> list[int]:
        items: list[int] = []
        while self._peek() != "]":
            token = self._next()
            if not token.lstrip("-").isdigit():
                self._fail("has a list with something else than numbers in it")
            items.append(int(token))
            if self._peek() == ",":
                self.position += 1
            elif self._peek() != "]":
                self._fail("has a list that does not end")
        self._expect("]")
        return self._bounded(items)

    def _bounded(self, items: list[int]) -> list[int]:
        if len(items) > MAX_LAYERS:
            self._fail(f"is longer than {MAX_LAYERS} layers")
        return items

    def _expect(self, token: str) -> None:
        if self._next() != token:
            self._fail(f"lacks {token!r}")
