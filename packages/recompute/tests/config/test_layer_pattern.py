"""moe_layer_freq and its relatives: the same lists as Megatron's eval, without eval."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.layer_pattern import MAX_LAYERS, layer_kinds, parse_layer_frequency
from recompute.errors import ConfigError

LISTS = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(str)
EXPRESSIONS = st.recursive(
    LISTS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]}+{pair[1]}"),
        st.tuples(inner, st.integers(0, 4)).map(lambda pair: f"({pair[0]}) * {pair[1]}"),
        st.tuples(st.integers(0, 4), LISTS).map(lambda pair: f"{pair[0]}*{pair[1]}"),
    ),
    max_leaves=6,
)


def evaluate(node: ast.expr) -> Any:
    """A second reading of the expression, over Python's own grammar."""
    match node:
        case ast.List():
            return [ast.literal_eval(item) for item in node.elts]
        case ast.Constant():
            return node.value
        case ast.BinOp(op=ast.Add()):
            return evaluate(node.left) + evaluate(node.right)
        case ast.BinOp(op=ast.Mult()):
            return evaluate(node.left) * evaluate(node.right)
    raise AssertionError(ast.dump(node))


@given(EXPRESSIONS)
def test_expressions_mean_what_python_says(text: Any) -> None:
    expected = evaluate(ast.parse(text, mode="eval").body)
    assert parse_layer_frequency(text, "model.moe_layer_freq") == tuple(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0]+[1]*7", (0, 1, 1, 1, 1, 1, 1, 1)),
        ("([1]*2+[0])*2", (1, 1, 0, 1, 1, 0)),
        ("2", 2),
        (" [0, 1,] ", (0, 1)),
        ("[]", ()),
    ],
)
def test_known_forms(text: Any, expected: Any) -> None:
    assert parse_layer_frequency(text, "f") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[0",
        "[0]+",
        "[0]*[1]",
        "[0]+1",
        "__import__('os')",
        "[x]",
        "(" * 100 + "[1]" + ")" * 100,
        f"[1]*{MAX_LAYERS + 1}",
        "[1]*9999*9999",
        "([1]*100)*101",
        "[0,1" * 30_000,
        "1,2",
        ")",
    ],
)
def test_everything_else_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_layer_frequency(text, "model.moe_layer_freq")
    assert caught.value.code == "bad-layer-frequency"


def test_an_integer_marks_every_nth_layer() -> None:
    assert layer_kinds(2, 5) == (1, 0, 1, 0, 1)
    assert layer_kinds((0, 1), 2) == (0, 1)
