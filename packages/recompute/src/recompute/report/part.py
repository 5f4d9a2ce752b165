"""One part of an answer, said once: lines for a terminal, markup for a page."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from recompute.config.schema import Assumption
from recompute.report.text import SHORT, bullets, columns, folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a header."""

    header: tuple[str, ...]
    """Column titles; the first column and those that end with ``|`` align to the left."""
    rows: tuple[tuple[str, ...], ...]
    """One text for each column."""
    below: tuple[str, ...] = ()
    """For each row what is too long for a column: a line of its own, on a page the last column."""
    below_title: str = ""
    """Title of that column."""
    below_is_code: bool = False
    """Whether it is to be pasted, so that no line of it may be broken."""

    def text(self) -> str:
        """Return aligned lines."""
        head, *lines = columns(self.header, self.rows)
        shown = [head]
        for index, line in enumerate(lines):
            shown.append(line)
            if index < len(self.below) and self.below[index]:
                said = self.below[index]
                shown.append("      " + said if self.below_is_code else folded(said, "      "))
        return "\n".join(shown)

    def markup(self, name: str) -> str:
        """Return a table that scrolls sideways where the window is narrow.

        Args:
            name: What the table shows, for those who hear the page.
        """
        titles = [*self.header, *([self.below_title + "|"] if self.below else [])]
        left = [index == 0 or title.endswith("|") for index, title in enumerate(titles)]
        head = "".join(
            f'<th scope="col"{_side(to_left)}>{html.escape(title.rstrip("|"))}</th>'
            for title, to_left in zip(titles, left, strict=True)
        )
        body = "".join(self._row(index, left) for index in range(len(self.rows)))
        return scrolling(
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", name
        )

    def _row(self, index: int, left: list[bool]) -> str:
        first, *rest = self.rows[index]
        cells = [f'<th scope="row">{html.escape(first)}</th>']
        cells += [
            f"<td{_side(to_left)}>{html.escape(cell)}</td>"
            for cell, to_left in zip(rest, left[1:], strict=False)
        ]
        if self.below:
            said = html.escape(self.below[index])
            code = self.below_is_code and said
            cells.append(
                f"<td><code>{said}</code></td>" if code else f'<td class="said">{said}</td>'
            )
        return f"<tr>{''.join(cells)}</tr>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part; what is given is shown in the order of the fields."""

    title: str = ""
    lines: tuple[str, ...] = ()
    """Sentences."""
    facts: tuple[tuple[str, str], ...] = ()
    """Name and value."""
    points: tuple[str, ...] = ()
    """Sentences of a list."""
    code: tuple[tuple[str, str], ...] = ()
    """Caption and what is to be pasted."""
    table: Table | None = None
    after: tuple[str, ...] = ()
    """Sentences below all that."""

    def text(self) -> str:
        """Return the lines for a terminal."""
        indent = "  " if self.title else ""
        width = max((len(name) for name, _ in self.facts), default=0)
        shown = [self.title] if self.title else []
        shown += [indent + line for line in self.lines]
        shown += [f"  {name.ljust(width)}  {value}" for name, value in self.facts]
        shown += [bullets(self.points)] if self.points else []
        for caption, code in self.code:
            shown += [f"  {caption}:", *(f"    {line}" for line in code.splitlines())]
        shown += [self.table.text()] if self.table is not None else []
        return "\n".join((*shown, *(indent + line for line in self.after)))

    def markup(self) -> str:
        """Return the part for a page, its heading included."""
        name = self.title or "Answer"
        shown = [f"<h2>{html.escape(name[:1].upper() + name[1:])}</h2>"] if self.title else []
        shown += [f"<p>{html.escape(line)}</p>" for line in self.lines]
        if self.facts:
            pairs = (f"<dt>{html.escape(n)}</dt><dd>{html.escape(v)}</dd>" for n, v in self.facts)
            shown.append(f"<dl>{''.join(pairs)}</dl>")
        shown += [listed(self.points)] if self.points else []
        for caption, code in self.code:
            shown.append(f"<p>{html.escape(caption)}</p>{preformatted(code, caption)}")
        shown += [self.table.markup(name)] if self.table is not None else []
        shown += [f"<p>{html.escape(line)}</p>" for line in self.after]
        return "".join(shown)


def text_of(parts: Iterable[Part | None]) -> str:
    """Return the parts for a terminal, an empty line between them."""
    return "\n\n".join(part.text() for part in parts if part is not None)


def markup_of(parts: Iterable[Part | None]) -> str:
    """Return the parts for a page."""
    return "".join(part.markup() for part in parts if part is not None)


def listed(points: Iterable[str]) -> str:
    """Return sentences as a list."""
    return f"<ul>{''.join(f'<li>{html.escape(point)}</li>' for point in points)}</ul>"


def preformatted(text: str, name: str) -> str:
    """Return text that keeps its lines and scrolls where they are long.

    Args:
        text: Plain text.
        name: What it is, for those who hear the page.
    """
    return scrolling(f"<pre>{html.escape(text)}</pre>", name)


def scrolling(markup: str, name: str) -> str:
    """Return markup in a box that the keyboard reaches and that scrolls sideways."""
    label = html.escape(name)
    return f'<div class="scroll" role="group" tabindex="0" aria-label="{label}">{markup}</div>'


def _side(to_left: bool) -> str:
    return "" if to_left else ' class="n"'


def assumption_part(assumptions: Iterable[Assumption], *, whole: bool) -> Part | None:
    """Return the assumptions, once each.

    Args:
        assumptions: Those of an answer.
        whole: Also those longer than :data:`recompute.report.text.SHORT`, which are counted otherwise.
    """
    texts = list({item.id: item.text for item in assumptions}.values())
    short = texts if whole else [text for text in texts if len(text) <= SHORT]
    more = len(texts) - len(short)
    rest = [f"{more} longer one{'s' * (more != 1)}; --json has the text"] if more else []
    return Part(title="assumptions", points=(*short, *rest)) if texts else None
