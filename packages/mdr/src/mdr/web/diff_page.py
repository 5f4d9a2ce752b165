"""``/a/{id}/diff/{from}...{to}``: what changed for an agent, which files, and line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.errors import BadReference
from mdr.web.diffs import table_of
from mdr.web.pages import page

if TYPE_CHECKING:
    from mdr.answers.answer import Answer
    from mdr.answers.service import Service

LISTS: Final = (
    ("hosts", "Hosts"),
    ("commands", "Commands"),
    ("tools", "Tools"),
    ("credential_paths", "Credential paths"),
)
"""Lists of the semantic diff, with what a page calls them."""


def diff_page(service: Service, artifact_id: str, span: str) -> Answer:
    """Write the page of a comparison.

    Args:
        service: What to answer from.
        artifact_id: Whose versions.
        span: ``from...to``; labels, hashes or ``latest``.

    Raises:
        mdr.errors.BadReference: bad-reference, not-found and the other codes of ``resolve``.
        mdr.errors.Refusal: tombstone.
    """
    before, dots, after = span.partition("...")
    if not (before and dots and after):
        raise BadReference(
            "bad-reference",
            "a comparison is written FROM...TO, with three dots",
            hint=f"such as /a/{artifact_id}/diff/git:20260529.7d99fda...latest",
        )
    document = service.reading.diff(artifact_id, before, after)
    semantic = document["semantic"]
    return page(
        "diff",
        service.base_url,
        a=document["artifact"],
        one=document["from"],
        two=document["to"],
        added=document["added_lines"],
        removed=document["removed_lines"],
        files=document["files"],
        semantic=semantic,
        lists=[
            (title, semantic[name])
            for name, title in LISTS
            if semantic[name]["added"] or semantic[name]["removed"]
        ],
        table=table_of(document["unified"]),
    )
