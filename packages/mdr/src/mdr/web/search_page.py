"""``/`` and ``/search``: find artifacts by words and facets, as plain links."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mdr.audit import newest as rules
from mdr.store import listing
from mdr.store.search import Query
from mdr.web.pages import page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.answers.answer import Answer
    from mdr.answers.service import Service
    from mdr.store.search import Page

FACETS: Final = (
    ("kind", "Kind"),
    ("grade", "Grade"),
    ("owner", "Owner"),
    ("license", "License"),
    ("tool", "Tool asked for"),
    ("mentions", "Host named"),
    ("host", "Host"),
)
"""Facets in the order of the page, with what it calls them."""
SHOWN: Final = 10
"""Values of one facet that are shown."""
NEWEST: Final = 8
MAX_QUERY: Final = 400


def home_page(service: Service) -> Answer:
    """Write the first page."""
    index = service.stores.index
    found = service.reading.registry.search(Query(limit=1))
    return page(
        "home",
        service.base_url,
        sums=listing.sums(index),
        newest=listing.newest(index, rules.LATEST, NEWEST),
        facets=_facets(found, {}),
        q="",
    )


def search_page(service: Service, asked: Mapping[str, str]) -> Answer:
    """Write a page of results.

    Args:
        service: What to answer from.
        asked: The query of the address: ``q``, ``cursor`` and facets; others are ignored.

    Raises:
        mdr.errors.UsageError: bad-cursor.
    """
    words = asked.get("q", "")[:MAX_QUERY].strip()
    chosen = {name: asked[name][:200] for name, _ in FACETS if asked.get(name)}
    query = replace(Query(words=words, cursor=asked.get("cursor") or None), **chosen)  # type: ignore[arg-type]  # names of FACETS
    found = service.reading.registry.search(query)
    base = chosen | ({"q": words} if words else {})
    return page(
        "search",
        service.base_url,
        q=words,
        base=base,
        chosen=[(name, title, chosen[name]) for name, title in FACETS if name in chosen],
        total=found.total,
        hits=found.hits,
        facets=_facets(found, chosen),
        next_cursor=found.next_cursor,
        continued=query.cursor is not None,
    )


def _facets(found: Page, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the facets that could narrow the answer, those that have several values or none chosen."""
    rows = []
    for name, title in FACETS:
        values = list(found.facets.get(name, {}).items())
        if name in chosen or not values:
            continue
        if name == "grade":
            values.sort()
        rows.append(
            {
                "name": name,
                "title": title,
                "values": values[:SHOWN],
                "more": max(0, len(values) - SHOWN),
            }
        )
    return rows
