"""Self-contained HTML pages: one file, no script, nothing fetched."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recompute.errors import WorldError
from recompute.report.part import scrolling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--soft:#f4f4f1;--line:#d9d9d3}
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#161616;--soft:#242424;--line:#404040}
.picture{filter:invert(1) hue-rotate(180deg)}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:var(--ink);background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}h3{font-size:1rem}p{margin:.3rem 0}
.scroll{overflow-x:auto;max-width:100%}
pre,code{font:13px/1.4 ui-monospace,monospace}pre{background:var(--soft);padding:.7rem;margin:.2rem 0 .6rem;width:max-content;min-width:calc(100% - 1.4rem)}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line);vertical-align:top}
thead th{font-weight:600;border-bottom-width:2px}tbody th{font-weight:400;background:var(--paper)}
pre.said{white-space:pre-wrap;width:auto}h1+p{font-size:1.1rem;font-weight:600}
td.n,th.n{text-align:right}td.said{white-space:normal;min-width:22rem}td code{white-space:nowrap}
@media(min-width:40rem){tbody th{position:sticky;left:0}}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.3rem 0}dd{margin:0}dt{opacity:.8}
svg{display:block;max-width:100%;min-width:44rem;height:auto}
@media print{.scroll{overflow:visible}pre{white-space:pre-wrap;width:auto}svg{min-width:0}}
"""
"""Wide tables and pictures scroll inside their own box, so that a phone reads the rest without it."""


def page(title: str, *pieces: str) -> str:
    """Return a page.

    Args:
        title: Plain text.
        pieces: Markup of ours, whose texts are escaped already.
    """
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style>'
        f"</head><body><main><h1>{name}</h1>{''.join(pieces)}</main></body></html>\n"
    )


def picture(title: str, drawn: str) -> str:
    """Return an SVG element under its heading; it is named for those who hear the page."""
    name = html.escape(title)
    tag, _, rest = drawn.partition(">")
    named = f'<svg role="img" aria-label="{name}" {tag.removeprefix("<svg ")}><title>{name}</title>'
    return f'<h2>{name}</h2>{scrolling(f"""<div class="picture">{named}{rest}</div>""", title)}'


@contextlib.contextmanager
def any_signs() -> Iterator[None]:
    """Draw signs that the font lacks without a warning: in the end it is the reader's own font."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element; the same figure gives the same bytes.

    Names come from files: what would act on a reader's text is left blank.
    """
    import io

    buffer = io.StringIO()
    with any_signs():
        figure.savefig(
            buffer, format="svg", metadata={"Date": None}, bbox_inches="tight", transparent=True
        )
    text = buffer.getvalue()
    shown = (sign if sign.isprintable() or sign == "\n" else " " for sign in text)
    return "".join(shown)[text.index("<svg") :]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display.

    Raises:
        WorldError: ``plots-missing`` when matplotlib or textalloc is not installed.
    """
    try:
        import matplotlib as mpl
        import textalloc  # noqa: F401 - asked for here, so that what is missing is said once
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise WorldError(
            "plots-missing",
            f"pictures need {error.name}, which is not installed",
            hint="pip install 'megatron-recompute[plots]'",
        ) from error
    mpl.rcParams["svg.hashsalt"] = "recompute"
    mpl.rcParams["text.parse_math"] = False  # dollars in names are dollars
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
