"""Checks 10 and 17: HTML that hides text, and HTML that runs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, hit
from mdr.audit.fold import fold_characters, fold_entities
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text

ATTRIBUTES: Final = rb"(?:[^<>\"']|\"[^\"]*\"|'[^']*')*?"
"""The inside of a tag; a ``>`` inside quotes does not end it."""
STYLED: Final = Rx(
    rb"<[a-z]" + ATTRIBUTES + rb"[\s\"'/]style\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>\"']+)"
)
HIDING: Final = tuple(
    (Rx(pattern), why)
    for pattern, why in (
        (rb"display:none", "display none"),
        (rb"visibility:(?:hidden|collapse)|content-visibility:hidden", "not visible"),
        (
            rb"(?:^|;)opacity:(?:0+(?:\.0*)?|0*\.0[0-9]*|[0-4](?:\.[0-9]*)?%|0+e[0-9]+)(?:!|;|$)|filter:opacity\(0",
            "transparent",
        ),
        (
            rb"font-size:(?:[01](?:\.[0-9]+)?(?:px|pt)?|0?\.0[0-9]*[a-z]*|0?\.[01][0-9]*(?:em|rem)|0[a-z]*|[0-9](?:\.[0-9]+)?%)(?:!|;|$)|font-size:0+(?:\.0+)?[a-z%]*(?:!|;|$)|(?:^|;)font:(?:[^;]* )?0(?:px|pt|em|rem|%)?(?:/| )",
            "text of no size",
        ),
        (
            rb"(?:left|top|right|bottom|text-indent|margin-left|margin-top|margin):-[0-9]{3,}|(?:left|top|right|bottom|text-indent|margin-left|margin-top):-(?:[5-9][0-9])(?:em|rem|vw|vh|%)|translate[xy]?\([^)]*-[0-9]{3,}",
            "moved off the page",
        ),
        (
            rb"(?:^|;)(?:width|height|max-height|max-width|line-height):0(?:\.0*)?(?:px|em|rem|%|pt)?(?:!|;|$)",
            "a box of no size",
        ),
        (
            rb"clip(?:-path)?:(?:rect\(0|inset\((?:100|[5-9][0-9])%|circle\(0|polygon\(00)|transform:scale[xy]?\(0?\.?0*\)",
            "clipped away",
        ),
    )
)
"""(pattern over a normalised style, what it does)."""
NO_COLOR: Final = Rx(
    rb"(?:^|;)(?:color|-webkit-text-fill-color):(?:transparent|(?:rgb|hsl)a\([^)]*,0*\.?0*%?\)|(?:rgb|hsl)a?\([^)]*/0*\.?0*%?\)|#[0-9a-f]{3}0(?:!|;|$)|#[0-9a-f]{6}00(?:!|;|$))"
)
WHITE: Final = rb"(?:white|snow|#fff(?:f|fff|fffff)?|rgba?\(255,255,255(?:,1)?\)|rgb\(100%,100%,100%\)|hsl\([0-9]+,[0-9]+%,100%\)|#fefefe)(?:!|;|$|important)"
WHITE_TEXT: Final = Rx(rb"(?:^|;)(?:color|-webkit-text-fill-color):" + WHITE)
BACKGROUND: Final = Rx(rb"(?:^|;)background(?:-color|-image)?:([^;]*)")
PALE: Final = Rx(rb"^(?:" + WHITE + rb"|transparent|none|inherit|initial|unset)")
CSS_COMMENT: Final = Rx(rb"(?s)/\*.*?(?:\*/|$)")
CSS_ESCAPE: Final = Rx(rb"\\([0-9a-f]{1,6})\s?")
HIDDEN_ATTRIBUTE: Final = Rx(
    rb"<(?:div|span|p|section|article|aside|header|footer|main|nav|[uod]l|li|d[td]|table|t[rdh]|tbody|thead|details|summary|pre|code|a|b|i|em|strong|h[1-6]|blockquote|figure|label|small|su[bp]|[usq]|mark|ins|del|cite|center|font|form|button|noscript|template)(?:[\s/]"
    + ATTRIBUTES
    + rb")?[\s\"'/](?:hidden(?:\s*=\s*[^\s>]*)?|color\s*=\s*[\"']?(?:white|#fff(?:fff)?))(?:[\s/>\"'])"
)
TEMPLATE: Final = Rx(rb"<template(?:[\s/>]|$)")
STYLE_BLOCK: Final = Rx(
    rb"(?s)<style(?:\s[^>]*)?>[^<]*(?:display\s*:\s*none|visibility\s*:\s*hidden|opacity\s*:\s*0\s*[;}]|font-size\s*:\s*0|color\s*:\s*transparent)[^<]*<"
)


HIDES_SOMETHING: Final = Rx(
    b"|".join(rx.pattern for rx in (STYLED, HIDDEN_ATTRIBUTE, TEMPLATE, STYLE_BLOCK))
)
"""One pass that tells most files apart from those that need a closer look."""


def find_hidden(text: Text) -> Iterator[Hit]:
    """Find text that inline styles, attributes or elements hide from a reader of the page."""
    lower = text.plain.lower
    if b"<" not in lower or HIDES_SOMETHING.search(lower) is None:
        return
    view = text.visible
    for match in STYLED.finditer(view.lower):
        tag = match.group() or b""
        why = (_hidden_by if len(tag) <= SHORT else _hidden_by.__wrapped__)(tag)
        if why is not None:
            yield hit(view, match, Status.FAIL, f"an inline style hides text: {why}")
    for pattern, why in (
        (HIDDEN_ATTRIBUTE, "an attribute hides text"),
        (TEMPLATE, "a template is never shown"),
        (STYLE_BLOCK, "a style sheet in the file hides text"),
    ):
        for match in pattern.finditer(view.lower):
            yield hit(view, match, Status.FAIL, why)


SHORT: Final = 256
"""Bytes up to which the answer for a tag is kept; long ones seldom come twice."""


@lru_cache(maxsize=1024)
def _hidden_by(tag: bytes) -> str | None:
    start, end = STYLED.groups(tag, 0, len(tag))[1]
    return hides(tag[start:end].strip(b"\"'"))


def hides(style: bytes) -> str | None:
    """Say how a style hides text; ``None`` when it does not.

    Args:
        style: The value of a style attribute, lower case; entities, CSS comments and CSS escapes are
            resolved here. White text on a background that the same style darkens is visible.
    """
    plain = normal_style(style)
    if HIDES_ANY.search(plain) is None:
        return None
    for pattern, why in HIDING:
        if pattern.search(plain) is not None:
            return why
    if NO_COLOR.search(plain) is not None:
        return "text without colour"
    if WHITE_TEXT.search(plain) is not None:
        background = BACKGROUND.search(plain)
        if background is None or PALE.match(background.group(1) or b"") is not None:
            return "white text"
    return None


HIDES_ANY: Final = Rx(
    b"|".join((*(rx.pattern for rx, _ in HIDING), NO_COLOR.pattern, WHITE_TEXT.pattern))
)


def normal_style(style: bytes) -> bytes:
    """Resolve entities, comments and escapes, and drop white space."""
    plain = fold_entities(fold_characters(style)).lower()
    if b"\\" not in plain and b"/*" not in plain:
        return b"".join(plain.split())
    pieces, done = [], 0
    for match in CSS_COMMENT.finditer(plain):
        pieces.append(plain[done : match.start()])
        done = match.end()
    plain = b"".join((*pieces, plain[done:]))
    pieces, done = [], 0
    for match in CSS_ESCAPE.finditer(plain):
        code = int(match.group(1) or b"0", 16)
        pieces += [plain[done : match.start()], bytes([code]) if 0x20 <= code < 0x7F else b""]
        done = match.end()
    plain = b"".join((*pieces, plain[done:])).replace(b"\\", b"").lower()
    return b"".join(plain.split())


TAG_END: Final = rb"(?:[\s/>]|$)"
RUNS: Final = (
    (
        Rx(rb"</?(?:[a-z]+:)?script" + TAG_END + rb"|<\s+/?\s*script\s*(?:>|[a-z]+\s*=)"),
        "script tag",
    ),
    (
        Rx(rb"<(?:[a-z]+:)?(?:iframe|object|embed|applet|frame|frameset)" + TAG_END),
        "tag that loads a document",
    ),
    (Rx(rb"<[a-z](?:" + ATTRIBUTES + rb")?[\s\"'/]on[a-z]{3,}\s*=[^<>]"), "event handler"),
    (
        Rx(rb"<meta\s[^<>]*http-equiv\s*=\s*[\"']?refresh|<base\s[^<>]*href"),
        "tag that redirects links",
    ),
)
RUNS_SOMETHING: Final = Rx(b"|".join(rx.pattern for rx, _ in RUNS))
_SCHEME: Final = b"|".join(
    rb"[\s]*".join(bytes([c]) for c in word) for word in (b"javascript", b"vbscript")
)
SCRIPT_LINK: Final = Rx(
    rb"(?:\]\(\s*<?\s*|\]:\s*<?\s*|<|(?:href|src|action|formaction|data|poster|background|srcdoc|xlink:href|to|values)\s*=\s*[\"']?\s*)(?:(?:"
    + _SCHEME
    + rb")\s*:|data\s*:\s*(?:text/html|text/xml|application/xhtml|image/svg\+xml[^\s)\"']*script))"
)
"""A link that runs code, in Markdown or HTML, with white space inside the scheme as browsers allow."""


def find_script(text: Text) -> Iterator[Hit]:
    """Find script tags, frames, event handlers and links that run code, outside code."""
    lower = text.plain.lower
    if b"<" in lower:
        for pattern, why in RUNS if RUNS_SOMETHING.search(lower) is not None else ():
            view = text.visible
            for match in pattern.finditer(view.lower):
                yield hit(view, match, Status.FAIL, why)
    if SCRIPT_LINK.search(text.folded.lower) is not None:
        view = text.visible_folded
        for match in SCRIPT_LINK.finditer(view.lower):
            yield hit(view, match, Status.FAIL, "link that runs code")


HIDDEN_STYLE: Final = Check(
    id="hidden-style",
    title="No text hidden with inline styles",
    severity=Severity.HIGH,
    find=find_hidden,
)
SCRIPT: Final = Check(
    id="script",
    title="No script tag",
    severity=Severity.HIGH,
    find=find_script,
)
