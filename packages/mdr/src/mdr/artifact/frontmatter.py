"""The YAML block at the top of a Markdown file, read with limits.

A block starts at the first byte (after one byte order mark) with a line ``---`` and ends at a line
``---`` or ``...``: whole lines, so that ``---`` inside a value ends nothing. Hostile YAML is a named
problem, never an exception and never a large allocation: aliases are refused (one line of ``*a`` can
stand for a billion nodes), and size, depth, node count and scalar length have bounds.

Plain ``key: value`` lines, which most files consist of, are read without the YAML machinery; a test
holds both readers equal. The pure Python loader is used on purpose: the C one accepts and refuses
slightly different texts, and a grade must not depend on which one is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from mdr.artifact.simple_yaml import MAX_SCALAR_CHARS, read_simple

BOM: Final = b"\xef\xbb\xbf"
MAX_BLOCK_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 16
MAX_NODES: Final = 4_000
MAX_TYPED_CHARS: Final = 64
"""Longest number or date; longer ones are slow to convert and mean nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontmatterProblem:
    """Why the block is not usable YAML."""

    code: str
    """``missing``, ``unclosed``, ``too-large``, ``yaml``, ``alias``, ``too-deep``, ``too-many-nodes``,
    ``huge-scalar`` or ``not-a-mapping``."""
    message: str
    line: int
    """1-based line of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontmatter:
    """What stands above the body."""

    present: bool
    """A block was opened and closed."""
    start: int
    """Offset of the first byte of the YAML text, in the text that was read."""
    end: int
    """Offset behind its last byte."""
    body: int
    """Offset of the first byte after the closing line; 0 without a block."""
    values: Mapping[str, Any] | None
    """The mapping; ``None`` when there is a problem. Keys that are not strings are left out."""
    problem: FrontmatterProblem | None

    def text(self, key: str) -> str | None:
        """Return a value that is a string and not blank."""
        value = self.values.get(key) if self.values is not None else None
        return value if isinstance(value, str) and value.strip() else None


class _Refused(Exception):
    """A bound was exceeded."""

    def __init__(self, code: str, message: str, line: int) -> None:
        super().__init__(message)
        self.code = code
        self.line = line


def read_frontmatter(data: bytes, *, allow_bom: bool = True) -> Frontmatter:
    """Find and read the block.

    Args:
        data: UTF-8 text, any line ends; offsets of the result refer to it.
        allow_bom: Skip one byte order mark at the start.

    Returns:
        The block with its values or its problem. Never raises for data.
    """
    first = len(BOM) if allow_bom and data.startswith(BOM) else 0
    opening, start = _line(data, first)
    if opening.rstrip() != b"---":
        return _without("missing", "the file does not begin with a line ---")
    position = start
    while position < len(data):
        line, following = _line(data, position)
        if line[:3] in {b"---", b"..."} and line.rstrip(b" \t") in {b"---", b"..."}:
            return _read(data, start, position, following)
        position = following
    return _without("unclosed", "the block is never closed by a line ---")


def _line(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the line at ``start`` without its end, and where the next one starts."""
    feed = data.find(b"\n", start)
    stop = len(data) if feed < 0 else feed
    carriage = data.find(b"\r", start, stop)
    if carriage < 0:
        return data[start:stop], min(stop + 1, len(data))
    return data[start:carriage], carriage + (2 if carriage + 1 == feed else 1)


def _without(code: str, message: str) -> Frontmatter:
    problem = FrontmatterProblem(code=code, message=message, line=1)
    return Frontmatter(present=False, start=0, end=0, body=0, values=None, problem=problem)


def _read(data: bytes, start: int, end: int, body: int) -> Frontmatter:
    values: Mapping[str, Any] | None = None
    problem = None
    try:
        values = load_mapping(data[start:end])
    except _Refused as refused:
        line = refused.line + 1
        problem = FrontmatterProblem(code=refused.code, message=str(refused), line=line)
    return Frontmatter(
        present=True, start=start, end=end, body=body, values=values, problem=problem
    )


def load_mapping(block: bytes) -> Mapping[str, Any]:
    """Read one YAML mapping within the bounds of this module.

    Raises:
        _Refused: it is no mapping, no YAML, or exceeds a bound; turned into a problem by the caller.
    """
    if len(block) > MAX_BLOCK_BYTES:
        raise _Refused("too-large", f"{len(block)} bytes of YAML, at most {MAX_BLOCK_BYTES}", 1)
    text = block.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    simple = read_simple(text)
    if simple is not None:
        return simple
    loaded = load_yaml(text)
    if not isinstance(loaded, dict):
        raise _Refused("not-a-mapping", f"a {type(loaded).__name__}, not a mapping of keys", 1)
    return {key: value for key, value in loaded.items() if isinstance(key, str)}


def load_yaml(text: str) -> Any:
    """Load one YAML document with the safe loader and the bounds of this module."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506, TID251 - a safe loader with bounds
    except _Refused:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = mark.line + 1 if mark else 1
        raise _Refused("yaml", f"not YAML: {error.problem or error.context}", where) from None
    except yaml.YAMLError as error:
        raise _Refused("yaml", f"not YAML: {str(error).splitlines()[0]}", 1) from None
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise _Refused("yaml", f"not YAML: {str(error)[:80]}", 1) from None


@cache
def _loader() -> Any:
    """Return the bounded loader class; made on first use, so that importing this costs no YAML."""
    import yaml

    class Bounded(yaml.SafeLoader):
        """A safe loader that refuses what is small to write and large to hold."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self.nodes = 0
            self.depth = 0

        def fetch_alias(self) -> None:
            raise _Refused("alias", "aliases (*name) are not allowed", self.line + 1)

        def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - PyYAML's name
            if self.flow_level >= MAX_DEPTH:
                raise _Refused("too-deep", f"nested deeper than {MAX_DEPTH}", self.line + 1)
            super().fetch_flow_collection_start(TokenClass)

        def compose_node(self, parent: Any, index: Any) -> Any:
            line = self.line + 1
            self.nodes += 1
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise _Refused("too-deep", f"nested deeper than {MAX_DEPTH}", line)
            if self.nodes > MAX_NODES:
                raise _Refused("too-many-nodes", f"more than {MAX_NODES} values", line)
            node = super().compose_node(parent, index)
            self.depth -= 1
            if isinstance(node, yaml.ScalarNode):
                _check_scalar(node, line)
            return node

    return Bounded


def _check_scalar(node: Any, line: int) -> None:
    length = len(node.value)
    if length > MAX_SCALAR_CHARS:
        message = f"a value of {length} characters, at most {MAX_SCALAR_CHARS}"
        raise _Refused("huge-scalar", message, line)
    if length > MAX_TYPED_CHARS and node.tag != "tag:yaml.org,2002:str":
        raise _Refused("yaml", f"a number or date of {length} characters", line)
