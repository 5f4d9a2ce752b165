"""The bounded reader of YAML frontmatter."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mdr.artifact.frontmatter import MAX_BLOCK_BYTES, read_frontmatter
from mdr.artifact.simple_yaml import MAX_SCALAR_CHARS, read_simple


def problem_of(block: str) -> str | None:
    found = read_frontmatter(f"---\n{block}\n---\nbody\n".encode())
    return found.problem and found.problem.code


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ("a: &x [1, 2]\nb: *x", "alias"),
        (
            "a: &a [x,x]\n"
            + "\n".join(
                f"{c}: &{c} [*{p},*{p}]" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "alias",
        ),
        ("a: " + "[" * 5000, "too-deep"),
        ("a: " + "[a, " * 5000, "too-deep"),
        ("a: " + "{a: " * 5000, "too-deep"),
        ("- " * 5000 + "a", "too-deep"),
        ("\n".join(" " * depth + "a:" for depth in range(200)), "too-deep"),
        ("a: [" + "1," * 20_000, "too-many-nodes"),
        ("a: " + "x" * (MAX_SCALAR_CHARS + 1), "huge-scalar"),
        ("a: |\n" + f"  {'x' * 30}\n" * 600, "huge-scalar"),
        ("a: " + "9" * 5000, "yaml"),
        ("a: " + "1:" * 2000 + "1", "yaml"),
        ("a: 2024-99-99", "yaml"),
        ("a: !!python/object/apply:os.system [id]", "yaml"),
        ("? [a]\n: b", "yaml"),
        ("a: \x1b[0m", "yaml"),
        ("\t- a", "yaml"),
        ("- a", "not-a-mapping"),
        ("text", "not-a-mapping"),
        ("", "not-a-mapping"),
        ("a: b\n" * MAX_BLOCK_BYTES, "too-large"),
        ("a: b", None),
        ("a: 1\nb: [x, {y: z}]\nc: >\n  d\n  e", None),
    ],
)
def test_hostile_and_ordinary_blocks(block: str, code: str | None) -> None:
    assert problem_of(block) == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "missing"),
        (b"# x\n", "missing"),
        (b"---", "unclosed"),
        (b"---\na: b\n", "unclosed"),
        (b"\n---\na: b\n---\n", "missing"),
    ],
)
def test_blocks_that_are_not_there(data: bytes, code: str) -> None:
    found = read_frontmatter(data)
    assert not found.present
    assert found.problem is not None
    assert found.problem.code == code
    assert found.body == 0


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("close", ["---", "...", "---  "])
def test_line_ends_and_delimiters(newline: str, bom: str, close: str) -> None:
    data = (bom + newline.join(["---", "name: a --- b", close, "body", ""])).encode()
    found = read_frontmatter(data)
    assert found.values == {"name": "a --- b"}
    assert data[found.body :].decode() == f"body{newline}"
    assert data[found.start : found.end].decode() == f"name: a --- b{newline}"


def test_the_line_of_a_problem_is_that_of_the_file() -> None:
    found = read_frontmatter(b"---\nname: a\ndescription: Use when: x\n---\n")
    assert found.problem is not None
    assert found.problem.line == 3


def test_text_gives_only_strings_that_say_something() -> None:
    found = read_frontmatter(b"---\na: x\nb: 1\nc: '  '\nd:\n---\n")
    assert [found.text(key) for key in "abcde"] == ["x", None, None, None, None]


words = st.text(st.sampled_from("ab Zy0.-_:#'\"[]{},&*!|>%@`?/\t~=é中\x85\u2028"), max_size=16)
values = st.one_of(
    words,
    st.sampled_from(
        [
            "",
            ">",
            ">-",
            "|",
            "|-",
            "|+",
            "> # c",
            "a b",
            "'a'",
            '"a b"',
            "yes",
            "1",
            "a #b",
            "a#b",
            "a: b",
            "a:b",
            "- a",
            "a -b",
            "é — 中",
        ]
    ),
)
lines = st.tuples(
    st.sampled_from(["", "  ", "    ", " "]),
    st.sampled_from(["name: ", "k-1: ", "on: ", "x_Y:", "metadata:", "- ", "", "  "]),
    values,
).map("".join)


@settings(max_examples=1500, deadline=None)
@given(st.lists(lines, min_size=1, max_size=7))
@example(["a: >", "  b", "  c", "d: e"])
@example(["a:", "- b", "- c", "d: e"])
@example(["a: b #c"])
@example(["a: b", "  c"])
def test_the_fast_reader_agrees_with_yaml(block: list[str]) -> None:
    text = "\n".join(block) + "\n"
    fast = read_simple(text)
    if fast is not None:
        assert fast == yaml.safe_load(text)


@pytest.mark.parametrize(
    "block",
    [
        "name: demo\ndescription: Use it for x, y and z (see https://example.com/a#b).\nlicense: 'MIT'\n",
        "name: demo\ndescription: >-\n  Folded text\n  on two lines.\nmetadata:\n  author: Somebody <a@b>\n  tags:\n    - one\n    - two\n",
        'name: "demo"\ntags:\n- a\n- b\nversion: "1.0"\ntools:\n  - Read\ndescription: |\n  x\n  y\n',
        "description: Ein Satz — mit Strich.\n",
    ],
)
def test_ordinary_blocks_are_read_fast(block: str) -> None:
    fast = read_simple(block)
    assert fast is not None
    assert fast == yaml.safe_load(block)


@pytest.mark.parametrize("tail", [" ", ":x", "#x", "x:", " :", "'", '"', "é"])
def test_long_values_take_one_pass(tail: str) -> None:
    """Each of these once meant backtracking; the suite's time limit is the only clock here."""
    block = "a: x" + tail * 15_000 + "\t\n"
    assert read_simple(block) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_never_raises(data: bytes) -> None:
    text = data.decode("utf-8", "ignore").encode()
    for block in (text, b"---\n" + text + b"\n---\n"):
        found = read_frontmatter(block)
        assert 0 <= found.start <= found.end <= found.body or not found.present
