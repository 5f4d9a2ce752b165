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

import re
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mdr.artifact.frontmatter import Frontmatter, read_frontmatter
from mdr.audit.fold import folded
from mdr.audit.markdown import visible_bytes
from mdr.audit.places import Places
from mdr.audit.rx import Rx
from mdr.audit.urls import Link, bare_hosts, escaped_hosts, links
from mdr.audit.view import View

if TYPE_CHECKING:
    from mdr.artifact.types import Kind
    from mdr.audit.view import Anchors

BOM: Final = b"\xef\xbb\xbf"
CONTINUATIONS: Final = ((b"\\\n", b"  "), (b" `\n", b"   "), (b" ^\n", b"   "))
"""The shell's, PowerShell's and cmd's continuation of a line, and blanks of the same length."""
PIPE_AT_END: Final = re.compile(rb"(?m)^[ \t]*[^|\t\n\f\r ][^\n]*\|[ \t]*\n")
"""A pipe that ends a line outside a table. This and the next are not RE2, and linear too: what a part
may repeat, the next part cannot begin with, so that each byte of a line is read a few times at most."""
SOFT_BREAK: Final = re.compile(
    rb"(?<=[^\t\n\f\r #|>])[ \t]*\n(?=[ \t]*[a-z0-9~/$\"'`*_(\[.])"
    rb"(?![ \t]*(?:[*+-]|[0-9]{1,9}[.)])[ \t])"
)
"""A newline inside a paragraph; the next line starts no list, heading, table or quotation."""
FENCE_LINE: Final = Rx(rb"(?m)^[ \t>]*(?:```|~~~)")
"""Between the first and second, third and fourth, ... lie commands, whose lines stay apart."""
SHELL_QUOTES: Final = b"'\"\\"
DELETED: Final = re.compile(rb"['\"\\]+")
CRLF: Final = re.compile(rb"\r\n")


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
        if not skip and b"\r" not in data:
            return View(data)
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
        return View(stripped, self.folded, lambda: _deletion_anchors(data))

    @cached_property
    def readings(self) -> tuple[View, ...]:
        """The folded view, and the unquoted one where it differs: what a person and a shell read."""
        unquoted = self.unquoted
        same = len(unquoted.data) == len(self.folded.data)
        return (self.folded,) if same else (self.folded, unquoted)

    @cached_property
    def flowing(self) -> View:
        """The folded text, lower case, with the lines of a paragraph joined."""
        data = self.folded.lower
        patched = bytearray(data)
        fences = [fence.start() for fence in FENCE_LINE.finditer(data)]
        for match in SOFT_BREAK.finditer(data):
            line_break = match.end() - 1
            if not fences or bisect_right(fences, line_break) % 2 == 0:
                patched[line_break] = 0x20
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

    @cached_property
    def _places(self) -> Places:
        return Places(self.source)

    @cached_property
    def escaped_hosts(self) -> dict[bytes, str]:
        """Hosts of links that are spelled with percent signs, by spelling."""
        return escaped_hosts(self.folded.lower)

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column (code points) of an offset in the source."""
        return self._places.of(offset)


def _line_anchors(body: bytes, skip: int) -> Anchors:
    ends = enumerate((match.end() for match in CRLF.finditer(body)), start=1)
    return ((0, skip), *((end - count, end + skip) for count, end in ends))


def _deletion_anchors(data: bytes) -> Anchors:
    pairs, gone = {0: 0}, 0
    for match in DELETED.finditer(data):
        pairs[match.start() - gone] = match.end()
        gone += match.end() - match.start()
    return tuple(pairs.items())
