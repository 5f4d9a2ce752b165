"""One file and its views, each built when a check first asks for it.

====================  ======================================================================
``plain``             no byte order mark; CRLF and CR are LF
``joined``            plain, with line continuations joined; same offsets as plain
``folded``            joined, invisible characters gone, look-alikes and entities in ASCII
``unquoted``          folded, without the quotes and backslashes a shell would drop
``flowing``           folded, with the lines of a paragraph joined
``visible``           plain, with frontmatter, fenced code and inline code blanked
====================  ======================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mdr.artifact.frontmatter import Frontmatter, read_frontmatter
from mdr.audit.fold import folded
from mdr.audit.markdown import visible_bytes
from mdr.audit.rx import Rx
from mdr.audit.urls import Link, bare_hosts, links
from mdr.audit.view import View

if TYPE_CHECKING:
    from mdr.artifact.types import Kind
    from mdr.audit.view import Anchors

BOM: Final = b"\xef\xbb\xbf"
CONTINUATIONS: Final = ((b"\\\n", b"  "), (b" `\n", b"   "), (b" ^\n", b"   "))
"""The shell's, PowerShell's and cmd's continuation of a line, and blanks of the same length."""
PIPE_AT_END: Final = Rx(rb"(?m:^)[ \t]*[^|\s][^\n]*\|[ \t]*\n")
"""A pipe that ends a line outside a table."""
SOFT_BREAK: Final = Rx(rb"[^\s#|>][ \t]*(\n)[ \t]*[a-z0-9~/$\"'`*_(\[.]")
"""A newline inside a paragraph; the next line starts no list, heading, table or quotation."""
FENCE_LINE: Final = Rx(rb"(?m)^[ \t>]*(?:```|~~~)")
"""Between the first and second, third and fourth, ... lie commands, whose lines stay apart."""
LIST_ITEM: Final = Rx(rb"[ \t]*(?:[*+-]|[0-9]{1,9}[.)])[ \t]")
SHELL_QUOTES: Final = b"'\"\\"


class Text:
    """The views of one file that is valid UTF-8 without NUL."""

    def __init__(self, data: bytes, kind: Kind) -> None:
        """Keep the bytes; nothing is computed yet."""
        self.source = data
        self.kind = kind

    @cached_property
    def plain(self) -> View:
        """The text without byte order mark, every line ended by LF."""
        data = self.source
        skip = len(BOM) if data.startswith(BOM) else 0
        body = data[skip:]
        if b"\r" not in body:
            return View(body, View(data), lambda: ((0, skip),))
        unified = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return View(unified, View(data), lambda: _line_anchors(body, skip))

    @cached_property
    def frontmatter(self) -> Frontmatter:
        """The YAML block at the top, read with limits."""
        return read_frontmatter(self.plain.data, allow_bom=False)

    @cached_property
    def joined(self) -> View:
        """The text with continued lines on one line."""
        data = self.plain.data
        patched = data
        for mark, blanks in CONTINUATIONS:
            patched = patched.replace(mark, blanks)
        if b"|\n" in patched or b"| \n" in patched:
            pipes = bytearray(patched)
            for match in PIPE_AT_END.finditer(patched):
                pipes[match.end() - 1] = 0x20
            patched = bytes(pipes)
        return self.plain if patched == data else View(patched, self.plain)

    @cached_property
    def folded(self) -> View:
        """The text as a reader understands it; use ``folded.lower`` for words."""
        return folded(self.joined)

    @cached_property
    def unquoted(self) -> View:
        """The folded text as a shell reads words: without quotes and backslashes; lower case."""
        data = self.folded.lower
        stripped = data.translate(None, SHELL_QUOTES)
        return View(stripped, self.folded, lambda: _deletion_anchors(data, SHELL_QUOTES))

    @cached_property
    def flowing(self) -> View:
        """The folded text, lower case, with the lines of a paragraph joined."""
        data = self.folded.lower
        patched = bytearray(data)
        position = 0
        fences = [fence.start() for fence in FENCE_LINE.finditer(data)]
        while (match := SOFT_BREAK.search(data, position)) is not None:
            line_break = match.start(1)
            if bisect_right(fences, line_break) % 2:
                position = match.end()
            elif LIST_ITEM.match(data, line_break + 1) is None:
                patched[line_break] = 0x20
            position = line_break + 1
        return View(bytes(patched), self.folded)

    @cached_property
    def visible(self) -> View:
        """The text that a Markdown renderer treats as text and HTML, not as code."""
        return View(visible_bytes(self.plain.data, self.frontmatter.body), self.plain)

    @cached_property
    def visible_folded(self) -> View:
        """The visible text, folded."""
        return folded(self.visible)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links of the folded text, and hosts named to programs that connect."""
        view = self.folded
        return (*links(view.lower), *bare_hosts(view.data))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column (code points) of an offset in the source."""
        before = self.source[:offset]
        if self.source[offset - 1 : offset + 1] == b"\r\n":
            before = before[:-1]
        unified = before.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line_start = unified.rfind(b"\n") + 1
        column = len(unified[line_start:].decode("utf-8", "ignore").removeprefix("\ufeff")) + 1
        return unified.count(b"\n") + 1, column


def _line_anchors(body: bytes, skip: int) -> Anchors:
    pairs, here, there = [(0, skip)], 0, 0
    while (at := body.find(b"\r\n", there)) >= 0:
        here += at + 1 - there
        there = at + 2
        pairs.append((here, there + skip))
    return tuple(pairs)


def _deletion_anchors(data: bytes, deleted: bytes) -> Anchors:
    pairs, here = {0: 0}, 0
    for there, byte in enumerate(data):
        if byte in deleted:
            pairs[here] = there + 1
        else:
            here += 1
    return tuple(pairs.items())
