"""From a template and values to an answer: one environment, one policy, one look."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from mdr.answers.answer import REVALIDATED, Answer
from mdr.web.assets import asset_url
from mdr.web.unseen import shown

if TYPE_CHECKING:
    from jinja2 import Environment

HTML: Final = "text/html; charset=utf-8"
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing inline, nothing from anywhere else, nothing embedded, nothing evaluated."""
HEADERS: Final = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)
NOT_KNOWN: Final = "not known"
CUT: Final = 240


def page(
    template: str,
    base_url: str,
    *,
    status: int = 200,
    cache_control: str = REVALIDATED,
    headers: tuple[tuple[str, str], ...] = (),
    **values: Any,
) -> Answer:
    """Render a template.

    Args:
        template: Name without ``.html``.
        base_url: Where readers reach the service, for canonical links and commands to copy.
        status: Of the answer.
        cache_control: Of the answer.
        headers: More of them, lower case.
        **values: What the template names; a name that is missing is an error.
    """
    html = environment().get_template(f"{template}.html").render(base_url=base_url, **values)
    return Answer(
        body=html.encode("utf-8", "replace"),
        media_type=HTML,
        status=status,
        cache_control=cache_control,
        headers=HEADERS + headers,
    )


def html_answer(body: bytes, *, fresh_seconds: float) -> Answer:
    """Return the answer with a page that was rendered before.

    Args:
        body: Of an answer of :func:`page`.
        fresh_seconds: As in :class:`mdr.answers.answer.Answer`.
    """
    return Answer(body=body, media_type=HTML, fresh_seconds=fresh_seconds, headers=HEADERS)


@cache
def environment() -> Environment:
    """Return the environment of all templates: everything is escaped, a missing name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("mdr.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "seen": lambda text: shown(str(text)),
        "bytes": lambda size: f"{size:,} B",
        "number": lambda count: f"{count:,}",
        "day": lambda time: str(time)[:10],
        "known": lambda value: NOT_KNOWN if value is None or value == "" else value,
        "short": lambda digest: str(digest)[:12],
        "place": lambda text: quote(str(text), safe="/:@."),
        "cut": cut,
    }
    made.globals |= {"asset": asset_url, "query": _query}
    return made


def cut(text: str, length: int = CUT) -> str:
    """Cut a text at a word, with an ellipsis."""
    flat = " ".join(text[: 4 * length].split())
    if len(flat) <= length:
        return flat
    head = flat[:length]
    return f"{head[: head.rfind(' ') if ' ' in head else length].rstrip(',;:. ')} \u2026"


def _query(base: dict[str, str], **changes: str | None) -> str:
    """Write ``?...`` with some values set or, by ``None``, taken out."""
    values = {name: value for name, value in (base | changes).items() if value}
    return "?" + urlencode(values) if values else "?"
