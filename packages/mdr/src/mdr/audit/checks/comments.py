"""Check 6: instructions where a renderer shows nothing.

HTML comments in all their spellings, processing instructions, CDATA, declarations, the titles of link
reference definitions (``[//]: # (...)``), and YAML comments in the frontmatter. Comments inside fenced
or inline code are visible and not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit.checks.injection import PATTERNS
from mdr.audit.checks.row import Check, Hit, span
from mdr.audit.fold import fold_characters, fold_entities
from mdr.audit.pairs import Pairs
from mdr.audit.rx import Rx
from mdr.audit.stores import STORE
from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text
    from mdr.audit.view import View

OVERRIDES: Final = Pairs(
    rb"\b(?:ignore|disregard|override|bypass|forget)\b",
    rb"\b(?:instruction|rule|prompt|guideline|safety|polic|user)",
    reach=60,
)
SILENCES: Final = Rx(
    rb"\b(?:do not|don't|dont|never)\s+(?:tell|mention|inform|reveal|show|notify|warn)\b"
)
SENDS: Final = Pairs(
    rb"\b(?:send|upload|post|exfiltrate|transmit|forward)\b",
    rb"(?:https?://|\b(?:api )?keys?\b|\btokens?\b|secret|credential|\.env\b|password|\bconversation|\bchat history)",
    gap=rb"[^\n]",
    reach=80,
)
ORDERS: Final[tuple[tuple[Rx | Pairs, str], ...]] = (
    (
        Pairs(
            rb"\b(?:you|agents?|assistants?|claude|copilot|models?|ai|llms?)\b",
            rb"\b(?:must|should|shall|need to|have to|are to|will now)\b",
            reach=30,
        ),
        "tells the reader what it must do",
    ),
    (OVERRIDES, "overrides rules"),
    (SILENCES, "asks for silence"),
    (
        Pairs(
            rb"\b(?:run|execute|eval|curl|wget|bash|powershell|npx|pip install|download and)\b",
            rb"(?:https?://|\||\$\(|~/|\.sh\b)",
            gap=rb"[^\n]",
            reach=80,
        ),
        "tells the reader to run something",
    ),
    (SENDS, "tells the reader to send something"),
    (Rx(rb"\bsystem\s*(?:prompt|message)?\s*:\s*\S"), "poses as a system message"),
    (
        Pairs(rb"\b(?:read|print|cat|open|copy|collect)\b", STORE, gap=rb"[^\n]", reach=40),
        "names a credential store",
    ),
    (Rx(rb"\b(?:silently|secretly|covertly)\s+\w+"), "asks for something in secret"),
    *PATTERNS,
)
"""(pattern over a folded comment with its lines joined, what it does)."""
YAML_ORDERS: Final[tuple[tuple[Rx | Pairs, str], ...]] = (
    (OVERRIDES, "overrides rules"),
    (SILENCES, "asks for silence"),
    (SENDS, "tells the reader to send something"),
)

DEFINITION: Final = Rx(
    rb"(?m)^[ \t>]*\[[^\]\n]+\]:[ \t]*\n?[ \t]*(?:<[^<>\n]*>|[^\s<][^\s]*)[ \t]*\n?[ \t]*(\"[^\"]*\"|'[^']*'|\([^()]*\))[ \t]*$"
)
"""A link reference definition with a title; renderers show neither."""
HIDING: Final = (
    (Rx(rb"<!--"), (b"-->", b"--!>")),
    (Rx(rb"<\?"), (b"?>",)),
    (Rx(rb"<!\[CDATA\["), (b"]]>",)),
    (Rx(rb"<![a-zA-Z]"), ()),
    (DEFINITION, ()),
)
"""What opens hidden text, and what closes it where that is no end of a word by itself."""
SEPARATOR: Final = "\ue000".encode()
"""A private-use character that folding leaves alone."""
ANY_ORDER: Final = Rx(
    b"|".join(
        order.whole.pattern if isinstance(order, Pairs) else order.pattern for order, _ in ORDERS
    )
)

OPENERS: Final = Rx(rb"<!--|<\?|<!\[CDATA\[|<![a-zA-Z]")
CLOSERS: Final = {
    b"<!--": Rx(rb"--!?>"),
    b"<?": Rx(rb"\?>"),
    b"<![CDATA[": Rx(rb"\]\]>"),
    b"<!": Rx(rb">"),
}
"""Opening bytes -> what closes it; ``<!`` stands for declarations."""
EMPTY: Final = Rx(rb"<!--?-?>")
YAML_COMMENT: Final = Rx(rb"(?m)(?:^|[ \t])#[^\n]*$")


def find(text: Text) -> Iterator[Hit]:
    """Find instructions in text that a renderer hides."""
    data = text.plain.data
    if any(opener.search(data) and _may_order(data, ends) for opener, ends in HIDING):
        yield from _comments(text.visible, data, 0, len(data))
        yield from _definitions(text)
    elif b"<!--" in data:
        yield from _endless(text)
    block = text.frontmatter
    if block.present and _may_order(data[block.start : block.end], ()):
        for match in YAML_COMMENT.finditer(data, block.start, block.end):
            yield from _ordered(text.plain, match.start(), match.end(), YAML_ORDERS)
        yield from _comments(text.plain, data, block.start, block.end)


def _may_order(data: bytes, ends: tuple[bytes, ...]) -> bool:
    """Say whether an order could match in hidden text: one pass that clears most files.

    Args:
        data: The text, hidden or not.
        ends: What closes the hidden text. Each becomes the end of a line, so that the last word of the
            hidden text ends a line here as it does alone.
    """
    if SEPARATOR in data:
        return True
    for mark in ends:
        data = data.replace(mark, SEPARATOR)
    plain = fold_entities(fold_characters(data)).lower()
    return ANY_ORDER.search(b" ".join(plain.split()).replace(SEPARATOR, b"\n")) is not None


def _endless(text: Text) -> Iterator[Hit]:
    """Find a comment that never ends, where no comment can give an order."""
    data = text.plain.data
    closed = max(data.rfind(b"-->"), data.rfind(b"--!>"), 0)
    if data.find(b"<!--", closed) >= 0:
        yield from _comments(text.visible, data, closed, len(data))


def _definitions(text: Text) -> Iterator[Hit]:
    if DEFINITION.search(text.plain.data) is not None:
        for match in DEFINITION.finditer(text.visible.data):
            yield from _ordered(text.visible, match.start(1) + 1, match.end(1) - 1, ORDERS)


def _comments(view: View, data: bytes, start: int, end: int) -> Iterator[Hit]:
    """Look at comments that start in the view; their bodies are read from ``data``, unblanked."""
    visible, position = view.data, start
    endless: set[bytes] = set()
    while (opener := OPENERS.search(visible, position, end)) is not None:
        begin, inside = opener.start(), opener.end()
        empty = EMPTY.match(visible, begin)
        if empty is not None:
            position = empty.end()
            continue
        mark = opener.group() or b""
        kind = mark if mark in CLOSERS else b"<!"
        closing = None if kind in endless else CLOSERS[kind].search(data, inside, end)
        if closing is None:
            endless.add(kind)
            if mark == b"<!--":
                yield span(
                    view,
                    begin,
                    min(end, begin + 200),
                    Status.CRIT,
                    "a comment that never ends hides the rest of the file",
                )
                return
            position = inside
            continue
        yield from _ordered(view, inside, closing.start(), ORDERS, data)
        position = closing.end()


def _ordered(
    view: View,
    start: int,
    end: int,
    orders: tuple[tuple[Rx | Pairs, str], ...],
    data: bytes | None = None,
) -> Iterator[Hit]:
    """Yield one hit when the hidden text from ``start`` to ``end`` gives an order."""
    if end <= start:
        return
    body = (view.data if data is None else data)[start:end]
    body = b" ".join(fold_entities(fold_characters(body)).lower().split())
    if ANY_ORDER.search(body) is None:
        return
    for pattern, why in orders:
        if next(iter(_matches(pattern, body)), None) is not None:
            yield span(view, start, end, Status.CRIT, f"hidden text {why}")
            return


def _matches(pattern: Rx | Pairs, body: bytes) -> Iterator[object]:
    return pattern.find(body) if isinstance(pattern, Pairs) else pattern.finditer(body)


HTML_COMMENT: Final = Check(
    id="html-comment",
    title="No instruction hidden inside an HTML comment",
    severity=Severity.CRITICAL,
    worst=Status.CRIT,
    find=find,
)
