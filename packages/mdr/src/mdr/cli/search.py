"""``mdr search``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mdr.cli.options import harmless, json_option, place_options, print_document, say, talk

if TYPE_CHECKING:
    from mdr.settings import Settings
    from mdr.store.search import Page

SCHEMA = "mdr.search/1"


@click.command("search")
@click.argument("words", nargs=-1)
@click.option("--kind", help="skill, instructions, rule, prompt, agent or command.")
@click.option("--owner", help="Owner of the repository.")
@click.option("--grade", help="A, B, C, D or F.")
@click.option("--license", "license_", help="SPDX identifier.")
@click.option("--host", help="Host of the repository.")
@click.option("--mentions", help="A host that the file names.")
@click.option("--tool", help="A tool that the file asks for.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--cursor", help="next_cursor of the page before.")
@json_option
@place_options
def command(
    *,
    words: tuple[str, ...],
    kind: str | None,
    owner: str | None,
    grade: str | None,
    license_: str | None,
    host: str | None,
    mentions: str | None,
    tool: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    settings: Settings,
) -> int:
    """Find artifacts by words; without words, list what the registry holds."""
    from mdr.registry import open_registry
    from mdr.registry.searching import search_document
    from mdr.registry.viewed import fill_views
    from mdr.store.search import Query

    registry = open_registry(settings)
    query = Query(
        words=" ".join(words),
        kind=kind,
        owner=owner,
        grade=grade,
        license=license_,
        host=host,
        mentions=mentions,
        tool=tool,
        limit=limit,
        cursor=cursor,
    )
    page = registry.search(query)
    if as_json:
        document = search_document(query.words, page)
        fill_views(registry, document["items"])
        print_document(SCHEMA, document)
    else:
        _report(page)
    return 0


def _report(page: Page) -> None:
    for hit in page.hits:
        ref = harmless(hit.artifact.ref)
        text = harmless(hit.artifact.description or "")
        say(f"{hit.grade or '-'}  {hit.artifact.kind.value:12}  {ref}")
        if text:
            say(f"   {text[:100] + '...' if len(text) > 100 else text}")
    talk(f"{len(page.hits)} of {page.total}")
    if page.next_cursor:
        talk(f"more: --cursor {page.next_cursor}")
    if not page.total:
        talk("nothing found; mdr index SOURCE adds a repository")
