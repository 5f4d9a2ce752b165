"""Self-contained HTML pages: one file, no script, nothing fetched."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from recompute.errors import WorldError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import Figure

    from recompute.config.schema import Assumption

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1b1b1b}
pre{font:13px/1.4 ui-monospace,monospace;background:#f6f6f4;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere}
svg{max-width:100%;height:auto}h1{font-size:1.4rem}h2{font-size:1.1rem}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}pre{background:#222}
svg{background:#fff}}
"""


def page(title: str, sections: tuple[tuple[str, str], ...]) -> str:
    """Return a page.

    Args:
        title: Plain text.
        sections: ``(heading, markup)``; the markup is ours, its texts are escaped already.
    """
    body = "".join(
        f"<h2>{html.escape(head)}</h2>{_named(markup, head)}" for head, markup in sections
    )
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style>'
        f"</head><body><h1>{name}</h1>{body}</body></html>\n"
    )


def _named(markup: str, name: str) -> str:
    """Give a picture its name, for those who hear the page."""
    if not markup.startswith("<svg "):
        return markup
    text = html.escape(name)
    tag, _, rest = markup.partition(">")
    label = f'<svg role="img" aria-label="{text}" '
    return f"{label}{tag.removeprefix('<svg ')}><title>{text}</title>{rest}"


def assumption_section(assumptions: Iterable[Assumption]) -> tuple[str, str]:
    """Return the section that lists every assumption, whatever its length."""
    texts = {item.id: item.text for item in assumptions}.values()
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return "Assumptions", f"<ul>{items}</ul>"


def preformatted(text: str) -> str:
    """Return text as a block that keeps its columns."""
    return f"<pre>{html.escape(text)}</pre>"


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element; the same figure gives the same bytes."""
    import io

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display.

    Raises:
        WorldError: ``plots-missing`` when matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise WorldError(
            "plots-missing",
            "pictures need matplotlib, which is not installed",
            hint="pip install 'megatron-recompute[plots]'",
        ) from error
    mpl.rcParams["svg.hashsalt"] = "recompute"
    mpl.rcParams["svg.fonttype"] = (
        "none"  # text stays text: it can be searched, read aloud and copied
    )
    return NewFigure(figsize=(width, height), layout="constrained")


def write_page(path: str, text: str) -> None:
    """Write a page.

    Raises:
        WorldError: ``cannot-write``.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WorldError(
            "cannot-write",
            f"cannot write {path}: {error.strerror or error}",
            hint="give --html a file in a folder that exists and is writable",
        ) from error
