"""Which parts of a Markdown text a renderer shows as code: those are blanked, all else stays.

A simplified CommonMark block scanner that errs on the side of not blanking: fences (also in lists and
quotations) end with their container, indented code is not code here, an HTML block keeps its fences
and backticks, and an inline code span never leaves its paragraph, its list item or its table row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mdr.audit.rx import Rx

QUOTE: Final = Rx(rb"(?: {0,3}>[ \t]?)*")
FENCE: Final = Rx(rb"(`{3,}[^`\n]*|~{3,}[^\n]*)$")
MARKER: Final = Rx(rb"([*+-]|[0-9]{1,9}[.)])([ \t]+|$)")
INLINE: Final = Rx(rb"\\.|`+|<")
TAG: Final = Rx(
    rb"""<(?:!--|[a-zA-Z][a-zA-Z0-9-]*(?:[\s/]+(?:[a-zA-Z_:][a-zA-Z0-9_.:-]*(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=<>`]+))?)?)*/?>|/[a-zA-Z][^<>]*>)"""
)
"""An HTML tag or the beginning of a comment; tried only where a ``<`` stands, so that a quote which
is never closed is looked for once."""

BACKTICKS: Final = Rx(rb"`+")

BLOCK_NAMES: Final = (
    b"address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details"
    b"|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header"
    b"|hr|html|iframe|legend|li|link|main|menu|menuitem|nav|noframes|ol|optgroup|option|p|param"
    b"|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|track|ul"
)
HTML_BLOCKS: Final = (
    (
        Rx(rb"(?i)<(?:script|pre|style|textarea)(?:[\s>]|$)"),
        Rx(rb"(?i)</(?:script|pre|style|textarea)>"),
    ),
    (Rx(rb"<!--"), Rx(rb"-->")),
    (Rx(rb"<\?"), Rx(rb"\?>")),
    (Rx(rb"<!\[CDATA\["), Rx(rb"\]\]>")),
    (Rx(rb"<![a-zA-Z]"), Rx(rb">")),
    (Rx(rb"(?i)</?(?:" + BLOCK_NAMES + rb")(?:[\s/>]|$)"), None),
    (Rx(rb"(?i)<(?:/[a-z][a-z0-9-]*\s*|[a-z][a-z0-9-]*(?:\s[^<>]*)?/?)>[ \t]*$"), None),
)
"""CommonMark's HTML blocks 1 to 7: (how the first line starts, what ends it; None: a blank line)."""
LIST_STARTS: Final = frozenset(b"*+-0123456789"[index : index + 1] for index in range(13))
TAB: Final = 4
BACKTICK: Final = 0x60
LESS_THAN: Final = 0x3C
MAX_FENCE_INDENT: Final = 3


@dataclass(slots=True)
class _Scan:
    """Where the scanner stands."""

    out: bytearray
    data: bytes
    items: list[int] = field(default_factory=list)
    """Content columns of the open list items."""
    fence: tuple[bytes, int, int, int] | None = None
    """(character, length, column of its container, depth of quotation)."""
    html: tuple[Rx | None] | None = None
    paragraph: int | None = None
    """Where the open paragraph started."""
    depth: int = 0


def visible_bytes(data: bytes, body: int) -> bytes:
    """Return ``data`` with everything that is code, and all before ``body``, blanked by spaces.

    Args:
        data: Text with LF line ends.
        body: Where the frontmatter ends.

    Returns:
        As many bytes, newlines where they were.
    """
    scan = _Scan(bytearray(data), data)
    _blank(scan, 0, body)
    start = body
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        _line(scan, start, end)
        start = end + 1
    _close_paragraph(scan, len(data))
    return bytes(scan.out)


def _line(scan: _Scan, start: int, end: int) -> None:
    line = scan.data[start:end]
    quoted = QUOTE.match(line) if b">" in line[:4] else None
    offset = quoted.end() if quoted else 0
    depth = line.count(b">", 0, offset) if offset else 0
    rest = line[offset:]
    content = rest.lstrip(b" \t")
    column = _columns(rest[: len(rest) - len(content)])
    if scan.fence is not None:
        if _in_fence(scan, content, column, depth):
            _blank(scan, start, end)
            return
        scan.fence = None
    if scan.html is not None:
        _in_html(scan, content)
        return
    if not content.strip():
        _close_paragraph(scan, start)
        return
    if depth != scan.depth:
        _close_paragraph(scan, start)
        scan.depth = depth
    _open(scan, start, end, content, column)


def _open(scan: _Scan, start: int, end: int, content: bytes, column: int) -> None:
    """Read a line that is in no fence and no HTML block."""
    while scan.items and column < scan.items[-1]:
        scan.items.pop()
    while content[:1] in LIST_STARTS and (marker := MARKER.match(content)) is not None:
        _close_paragraph(scan, start)
        content, column = _item(scan, content, column, marker.end(1))
    container = scan.items[-1] if scan.items else 0
    near = column - container <= MAX_FENCE_INDENT
    if content[:3] in {b"```", b"~~~"} and near and FENCE.match(content) is not None:
        _close_paragraph(scan, start)
        run = len(content) - len(content.lstrip(content[:1]))
        scan.fence = (content[:1], run, container, scan.depth)
        _blank(scan, end - len(content), end)
    elif content.startswith(b"<") and near and _html_block(scan, content):
        _close_paragraph(scan, start)
    elif content.startswith((b"#", b"|")):
        _close_paragraph(scan, start)
        _blank_spans(scan, start, end)
    elif scan.paragraph is None and near:
        scan.paragraph = start


def _item(scan: _Scan, content: bytes, column: int, width: int) -> tuple[bytes, int]:
    after = content[width:]
    rest = after.lstrip(b" \t")
    gap = _columns(after[: len(after) - len(rest)])
    inside = column + width + (gap if rest and gap <= TAB else 1)
    scan.items.append(inside)
    return rest, column + width + gap


def _in_fence(scan: _Scan, content: bytes, column: int, depth: int) -> bool:
    """Say whether the line belongs to the open fence; close it on its closing line."""
    assert scan.fence is not None
    char, length, container, fence_depth = scan.fence
    if depth < fence_depth or (content.strip() and column < container):
        return False
    if depth > fence_depth:
        return True
    bare = content.rstrip(b" \t")
    closes = len(bare) >= length and not bare.strip(char) and column - container <= MAX_FENCE_INDENT
    if closes:
        scan.fence = None
    return True


def _html_block(scan: _Scan, content: bytes) -> bool:
    for number, (opening, closing) in enumerate(HTML_BLOCKS, start=1):
        if opening.match(content) is None or (
            number == len(HTML_BLOCKS) and scan.paragraph is not None
        ):
            continue
        if closing is None or closing.search(content, 1) is None:
            scan.html = (closing,)
        return True
    return False


def _in_html(scan: _Scan, content: bytes) -> None:
    assert scan.html is not None
    (closing,) = scan.html
    ended = not content.strip() if closing is None else closing.search(content) is not None
    if ended:
        scan.html = None


def _close_paragraph(scan: _Scan, end: int) -> None:
    if scan.paragraph is not None:
        _blank_spans(scan, scan.paragraph, end)
        scan.paragraph = None


def _blank_spans(scan: _Scan, start: int, end: int) -> None:
    """Blank the inline code of one paragraph, row or heading."""
    if scan.data.find(b"`", start, end) < 0:
        return
    markup = scan.data.find(b"<", start, end) >= 0 or scan.data.find(b"\\", start, end) >= 0
    tokens = INLINE if markup else BACKTICKS
    closers = _closers(scan.data, start, end)
    position = start
    while (token := tokens.search(scan.data, position, end)) is not None:
        opening, position = token.start(), token.end()
        if scan.data[opening] == LESS_THAN:
            tag = TAG.match(scan.data, opening)
            position = min(tag.end(), end) if tag else position
        if scan.data[opening] != BACKTICK:
            continue
        closer = closers.next(position - opening, position)
        if closer is not None:
            position += closer - opening
            _blank(scan, opening, position)


@dataclass(slots=True)
class _Closers:
    """Runs of backticks by length, each read once from left to right."""

    runs: dict[int, list[int]]

    def next(self, length: int, after: int) -> int | None:
        """Return the first run of ``length`` at or behind ``after``."""
        starts = self.runs.get(length, [])
        while starts and starts[-1] < after:
            starts.pop()
        return starts[-1] if starts else None


def _closers(data: bytes, start: int, end: int) -> _Closers:
    runs: dict[int, list[int]] = {}
    for match in BACKTICKS.finditer(data, start, end):
        runs.setdefault(match.end() - match.start(), []).append(match.start())
    return _Closers({length: starts[::-1] for length, starts in runs.items()})


def _blank(scan: _Scan, start: int, end: int) -> None:
    if scan.data.find(b"\n", start, end) < 0:
        scan.out[start:end] = b" " * (end - start)
        return
    lines = scan.data[start:end].split(b"\n")
    scan.out[start:end] = b"\n".join(b" " * len(line) for line in lines)


def _columns(white: bytes) -> int:
    """Return the width of leading white space, tabs to multiples of four."""
    column = 0
    for byte in white:
        column += TAB - column % TAB if byte == 0x09 else 1
    return column
