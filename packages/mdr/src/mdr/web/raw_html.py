"""HTML inside Markdown, made visible: harmless tags act, everything else is shown as the text it is.

A renderer that drops what it does not allow hides it from the person and leaves it for the agent. Here
nothing is dropped: comments, declarations, scripts, styled or hidden elements appear as marked text.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import TYPE_CHECKING, Final

from mdr.web.unseen import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

MAX_TAG: Final = 2_048
"""Characters within which a tag must end to be one; longer ones are shown as text."""
ACTING: Final = frozenset(
    [
        "b",
        "i",
        "em",
        "strong",
        "u",
        "s",
        "del",
        "ins",
        "sub",
        "sup",
        "kbd",
        "mark",
        "code",
        "br",
        "hr",
        "p",
        "div",
        "blockquote",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "details",
        "summary",
        "table",
        "thead",
        "tbody",
        "tr",
        "td",
        "th",
    ]
)
"""Tags that act when they carry no attribute but those that only arrange."""
ARRANGING: Final = frozenset(
    ["align", "valign", "width", "height", "class", "id", "colspan", "rowspan", "open", "start"]
)
"""Attributes that are dropped without a word: they cannot hide text where no style sheet is ours."""
HIDING: Final = (
    (("<!--"), ("-->", "--!>")),
    ("<?", ("?>",)),
    ("<![CDATA[", ("]]>",)),
    ("<!", (">",)),
)
_TAG: Final = re.compile(
    r"<(/?)([A-Za-z][A-Za-z0-9-]*)((?:\"[^\"]*\"|'[^']*'|[^'\"<>])*)>", re.DOTALL
)
_ATTRIBUTE: Final = re.compile(
    r"([^\s\"'<>/=]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?", re.DOTALL
)


def visible_html(text: str, target: Callable[[str], str | None]) -> str:
    """Return HTML in which every tag of ``text`` either acts harmlessly or can be read.

    Args:
        text: What a Markdown parser calls HTML.
        target: Gives the address of a link, ``None`` for one that must not be followed.
    """
    return "".join(_pieces(text, target))


def _pieces(text: str, target: Callable[[str], str | None]) -> Iterator[str]:
    position = 0
    while (at := text.find("<", position)) >= 0:
        yield shown(text[position:at])
        position = yield from _opened(text, at, target)
    yield shown(text[position:])


def _opened(text: str, at: int, target: Callable[[str], str | None]) -> Generator[str, None, int]:
    """Yield what stands at a ``<`` and return where it ends."""
    for opening, closings in HIDING:
        if text.startswith(opening, at):
            ends = [
                found + len(mark)
                for mark in closings
                if (found := text.find(mark, at + len(opening))) >= 0
            ]
            end = min(ends, default=len(text))
            yield hidden_block(text[at:end])
            return end
    match = _TAG.match(text, at, at + MAX_TAG)
    if match is None:
        yield "&lt;"
        return at + 1
    yield _tag(match, target)
    return match.end()


def hidden_block(text: str) -> str:
    """Draw text that renderers do not show."""
    return f'<span class="hidden-part"><span class="hidden-word">hidden</span> {shown(text)}</span>'


def _tag(match: re.Match[str], target: Callable[[str], str | None]) -> str:
    closing, name, rest = match.group(1), match.group(2).lower(), match.group(3)
    attributes = {
        key.lower(): unescape((value or "").strip("\"'")) for key, value in _ATTRIBUTE.findall(rest)
    }
    if name in ACTING and attributes.keys() <= ARRANGING:
        forced = " open" if name == "details" and not closing else ""
        return f"<{closing}{name}{forced}>"
    if name == "a" and attributes.keys() <= {"href", *ARRANGING}:
        address = target(attributes["href"]) if "href" in attributes else None
        if closing:
            return "</a>"
        if address is not None:
            return f'<a href="{escape(address)}">'
    if name == "img" and not closing and set(attributes) <= {"src", "alt", "title", *ARRANGING}:
        words = " ".join(attributes[name] for name in ("alt", "title") if attributes.get(name))
        return image(attributes.get("src", ""), words, target)
    word = "hides" if {"style", "hidden"} & attributes.keys() or name in _UNSEEN_TAGS else "tag"
    mark = '<span class="hidden-word">may hide text</span> ' if word == "hides" else ""
    return f'<span class="raw-tag">{mark}{shown(match.group())}</span>'


_UNSEEN_TAGS: Final = frozenset(
    ["template", "style", "script", "noscript", "font", "object", "iframe"]
)


def image(source: str, words: str, target: Callable[[str], str | None]) -> str:
    """Draw an image as a link: loading it would tell a third party who reads this page."""
    address = target(source)
    name = shown(words or "without words")
    where = shown(source[:200])
    label = f'<span class="image-word">image</span> {name}'
    if address is None:
        return f'<span class="image" title="{escape(source[:200])}">{label} ({where})</span>'
    return f'<a class="image" href="{escape(address)}">{label}</a>'
