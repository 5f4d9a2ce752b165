"""Markdown as a page: parsed by CommonMark, every hidden part drawn, and sanitised at the end.

Two walls stand between a file and a reader's browser. The renderer writes only tags of its own and passes
no attribute of the file through; then nh3 parses the result as browsers do and keeps what is on a list. A
strict content security policy is the third, in :mod:`mdr.web.pages`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markupsafe import Markup

from mdr.artifact.types import Kind
from mdr.audit.run import unreadable
from mdr.audit.text import Text
from mdr.web.raw_html import hidden_block, image, visible_html
from mdr.web.targets import ANCHOR, SCHEMES, Home, resolved
from mdr.web.unseen import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token

MAX_BYTES: Final = 200_000
"""Larger files are shown as lines only; the audit's fourth check refuses them too."""
MAX_HEADINGS: Final = 200
TAGS: Final = frozenset(
    [
        "a",
        "abbr",
        "b",
        "blockquote",
        "br",
        "caption",
        "code",
        "dd",
        "del",
        "details",
        "div",
        "dl",
        "dt",
        "em",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "i",
        "ins",
        "kbd",
        "li",
        "mark",
        "ol",
        "p",
        "pre",
        "s",
        "span",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "u",
        "ul",
    ]
)
ATTRIBUTES: Final = {
    "*": {"class", "id", "title"},
    "a": {"href"},
    "ol": {"start"},
    "details": {"open"},
    "div": {"role", "tabindex", "aria-label"},
    "pre": {"tabindex"},
    "th": {"scope"},
}
CLASSES: Final = frozenset(
    [
        "unseen",
        "hidden-part",
        "hidden-word",
        "raw-tag",
        "image",
        "image-word",
        "dead",
        "link-title",
        "info",
        "code-frame",
        "table-frame",
        "anchor",
        "md-h1",
        "md-h2",
        "md-h3",
        "md-h4",
        "md-h5",
        "md-h6",
        "left",
        "right",
        "center",
    ]
)
"""The only classes in rendered text; a file cannot bring one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """One heading of a file, for the list of contents."""

    level: int
    """2 to 6, as the page has it."""
    anchor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A file as a page shows it."""

    frontmatter: Markup
    """The YAML block as it is, ``""`` without one."""
    html: Markup
    headings: tuple[Heading, ...]


def render(data: bytes, home: Home) -> Rendered | None:
    """Render a Markdown file.

    Args:
        data: The bytes of the file.
        home: Where it stands, for its relative links.

    Returns:
        Sanitised HTML, or ``None`` for bytes that are not text or are more than :data:`MAX_BYTES`.
    """
    if len(data) > MAX_BYTES or unreadable(data) is not None:
        return None
    text = Text(data, Kind.SKILL)
    plain, block = text.plain.data, text.frontmatter
    above = plain[block.start : block.end].decode() if block.present else ""
    env: dict[str, Any] = {"home": home, "headings": [], "anchors": {}, "level": 1}
    tokens = _with_definitions(_parser().parse(plain[block.body :].decode(), env), env)
    html = _parser().renderer.render(tokens, _parser().options, env)
    return Rendered(
        frontmatter=shown(above),
        html=Markup(sanitised(html)),  # noqa: S704 - sanitised
        headings=tuple(env["headings"][:MAX_HEADINGS]),
    )


def sanitised(html: str) -> str:
    """Keep tags, attributes and addresses that are on our lists, and balance the rest."""
    return nh3.clean(
        html,
        tags=set(TAGS),
        attributes={tag: set(names) for tag, names in ATTRIBUTES.items()},
        attribute_filter=_attribute,
        url_schemes=set(SCHEMES),
        link_rel="nofollow noopener noreferrer ugc",
        strip_comments=True,
    )


def _attribute(_tag: str, name: str, value: str) -> str | None:
    """Filter what carries names: an id of ours, classes of ours."""
    if name == "class":
        return " ".join(word for word in value.split() if word in CLASSES) or None
    if name == "id":
        return value if value.startswith(ANCHOR) else None
    return value


@cache
def _parser() -> MarkdownIt:
    options = {"html": True, "linkify": False, "typographer": False}
    parser = MarkdownIt("commonmark", options, renderer_cls=PageRenderer)
    return parser.enable(["table", "strikethrough"])


def _with_definitions(tokens: list[Token], env: dict[str, Any]) -> list[Token]:
    """Put link definitions, which renderers swallow, back where they stand."""
    from markdown_it.token import Token

    definitions = sorted(
        (
            (entry.get("map", [0])[0], label, entry)
            for label, entry in env.get("references", {}).items()
        ),
        key=lambda item: item[0],
    )
    if not definitions:
        return tokens
    out: list[Token] = []
    depth = 0
    for token in tokens:
        while depth == 0 and token.map and definitions and definitions[0][0] < token.map[0]:
            out.append(_definition(Token, definitions.pop(0)))
        out.append(token)
        depth += token.nesting
    return out + [_definition(Token, each) for each in definitions]


def _definition(kind: type[Token], item: tuple[int, str, dict[str, Any]]) -> Token:
    _, label, entry = item
    title = f' "{entry["title"]}"' if entry.get("title") else ""
    return kind("definition", "", 0, content=f"[{label.lower()}]: {entry['href']}{title}")


def _slug(text: str) -> str:
    words = re.sub(r"[^\w\- ]+", "", text.lower(), flags=re.UNICODE)
    return re.sub(r"\s", "-", words.strip())[:80] or "section"


class PageRenderer(RendererHTML):
    """Writes tags of its own. Method names are markdown-it's token types."""

    def text(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write text."""
        return shown(tokens[idx].content)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write code inside a line."""
        return f"<code>{shown(tokens[idx].content)}</code>"

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write indented code."""
        return _code(tokens[idx].content, "")

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write fenced code; its info string is shown whole, since renderers show none of it."""
        return _code(tokens[idx].content, tokens[idx].info.strip())

    def html_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write a block of HTML."""
        return f"<div>{self._html(tokens[idx].content, env)}</div>\n"

    def html_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write HTML inside a line."""
        return self._html(tokens[idx].content, env)

    @staticmethod
    def _html(content: str, env: Any) -> str:
        return visible_html(content, lambda target: resolved(target, env["home"]))

    def definition(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write a link definition as text."""
        return f"<p>{hidden_block(tokens[idx].content)}</p>\n"

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write an image as a link."""
        token = tokens[idx]
        source, title = str(token.attrs.get("src", "")), token.attrs.get("title")
        words = token.content + (f" ({title})" if title else "")
        return image(source, words, lambda target: resolved(target, env["home"]))

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a link, or a dead one that says where it would lead."""
        href = str(tokens[idx].attrs.get("href", ""))
        address = resolved(href, env["home"])
        if address is None:
            return f'<a class="dead" title="leads to {escape(href[:200])}">'
        return f'<a href="{escape(address)}">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Close a link and show its title, which browsers hide in a tooltip."""
        title = _opening(tokens, idx).attrs.get("title")
        words = f' <span class="link-title">{shown(str(title))}</span>' if title else ""
        return f"</a>{words}"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a heading one level down, never skipping one, and keep how large it was."""
        written = int(tokens[idx].tag[1])
        level = max(2, min(written + 1, env["level"] + 1, 6))
        env["level"] = level
        text = _plain(tokens[idx + 1])
        slug = _slug(text)
        count = env["anchors"][slug] = env["anchors"].get(slug, 0) + 1
        anchor = ANCHOR + (slug if count == 1 else f"{slug}-{count - 1}")
        env["headings"].append(
            Heading(level=level, anchor=anchor, text=text[:200] or "without words")
        )
        tokens[idx].meta["level"] = level
        return f'<h{level} id="{escape(anchor)}" class="md-h{written}">'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Close a heading."""
        return f"</h{env['level']}>\n"

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a table in a frame that scrolls by itself."""
        return '<div class="table-frame" role="region" tabindex="0" aria-label="Table"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Close a table."""
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a head cell; one without words is none."""
        tokens[idx].meta["cell"] = "th" if tokens[idx + 1].content.strip() else "td"
        scope = ' scope="col"' if tokens[idx].meta["cell"] == "th" else ""
        return f"<{tokens[idx].meta['cell']}{scope}{_aligned(tokens[idx])}>"

    def th_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Close a head cell."""
        return f"</{'th' if tokens[idx - 1].content.strip() else 'td'}>\n"

    def td_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a cell."""
        return f"<td{_aligned(tokens[idx])}>"


def _code(content: str, info: str) -> str:
    words = f'<div class="info">{shown(info[:400])}</div>' if info else ""
    body = shown(content.removesuffix("\n"))
    return f'<div class="code-frame">{words}<pre tabindex="0"><code>{body}</code></pre></div>\n'


def _aligned(token: Token) -> str:
    """Turn markdown-it's inline style into one of our classes: the policy allows no inline style."""
    side = str(token.attrs.get("style", "")).removeprefix("text-align:")
    return f' class="{side}"' if side in {"left", "right", "center"} else ""


def _opening(tokens: Sequence[Token], idx: int) -> Token:
    """Return the ``link_open`` of a ``link_close``; links do not nest."""
    while tokens[idx].type != "link_open":
        idx -= 1
    return tokens[idx]


def _plain(inline: Token) -> str:
    kinds = {"text", "code_inline"}
    return "".join(each.content for each in inline.children or () if each.type in kinds).strip()
