"""The document of ``search`` (contract.md), the same for CLI and API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mdr.registry.documents import artifact_document
from mdr.registry.interface import SourceInfo

if TYPE_CHECKING:
    from mdr.store.search import Hit, Page


FACETS: Final = ("kind", "owner", "grade", "license", "host")
"""Those of the contract; pages show the tools as well."""


def search_document(words: str, page: Page) -> dict[str, Any]:
    """Return ``{query, total, items: [A + {grade, sha256, score}], facets, next_cursor}``."""
    return {
        "query": words,
        "total": page.total,
        "items": [_item(hit) for hit in page.hits],
        "facets": {name: page.facets.get(name, {}) for name in FACETS},
        "next_cursor": page.next_cursor,
    }


def _item(hit: Hit) -> dict[str, Any]:
    row = hit.row
    source = SourceInfo(
        stars=row["stars"],
        license=row["license"],
        pushed=row["pushed"],
        branch=row["branch"],
        indexed_commit=row["head"],
    )
    found = {"grade": hit.grade, "sha256": hit.sha256, "score": hit.score}
    return artifact_document(hit.artifact, source) | found
