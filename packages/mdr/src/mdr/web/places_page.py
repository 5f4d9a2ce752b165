"""Pages of owners, repositories and hashes: where things live."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from mdr.audit import newest as rules
from mdr.digest import Sha256, is_sha256
from mdr.errors import BadReference
from mdr.source.locate import GITHUB
from mdr.store import listing
from mdr.web.pages import page
from mdr.web.targets import repository_url

if TYPE_CHECKING:
    from mdr.answers.answer import Answer
    from mdr.answers.service import Service

PER_PAGE: Final = 100
MAX_PLACES: Final = 200
MAX_SKIPPED: Final = 50
NEAR: Final = 30
"""Repositories on each side, in the order of names, that a name which is not held is compared with."""


def owner_page(service: Service, owner: str) -> Answer:
    """Write the page of an owner.

    Raises:
        mdr.errors.BadReference: not-found.
    """
    found = listing.of_owner(service.stores.index, owner)
    if not found:
        raise BadReference(
            "not-found",
            f"no repository of {owner[:100]!r} is indexed here",
            data={"near": near_names(service, owner)},
        )
    return page(
        "owner",
        service.base_url,
        owner=found[0].repository.partition("/")[0],
        sources=[(each, source_path(each.host, each.repository)) for each in found],
    )


def repository_page(service: Service, where: str, number: str) -> Answer:
    """Write a page of the artifacts of a repository.

    Args:
        service: What to answer from.
        where: ``owner/repo``, or ``host/owner/repo`` for other hosts than GitHub.
        number: Which page, from 1; anything else is the first.

    Raises:
        mdr.errors.BadReference: not-found.
    """
    index = service.stores.index
    host, repository = _split(where)
    source = index.source(host, repository)
    if source is None:
        raise BadReference(
            "not-found",
            f"the repository {where[:200]!r} is not indexed here",
            hint=f"run: mdr index {'github:' if host == GITHUB else ''}{where[:200]}",
            data={"near": near_names(service, where)},
        )
    total = listing.count_of_source(index, source.id)
    pages = max(1, -(-total // PER_PAGE))
    at = min(int(number), pages) if number.isdecimal() and len(number) < 7 and int(number) else 1
    skipped = index.skipped(source.id)
    return page(
        "repository",
        service.base_url,
        source=source,
        path=source_path(source.host, source.repository),
        url=repository_url(source.host, source.repository),
        total=total,
        artifacts=listing.of_source(
            index, source.id, rules.LATEST, offset=(at - 1) * PER_PAGE, limit=PER_PAGE
        ),
        at=at,
        pages=pages,
        skipped=skipped[:MAX_SKIPPED],
        more_skipped=max(0, len(skipped) - MAX_SKIPPED),
    )


def hash_page(service: Service, digest: str) -> Answer:
    """Write the page of a SHA-256: where exactly these bytes live.

    Raises:
        mdr.errors.BadReference: bad-reference, not-found.
        mdr.errors.Refusal: tombstone.
    """
    name = digest.lower()
    if not is_sha256(name):
        raise BadReference(
            "bad-reference",
            "a SHA-256 has 64 hexadecimal digits",
            hint="search finds artifacts by words; a shorter hash goes with a reference: owner/repo/name@sha256:...",
        )
    data = service.reading.blob(Sha256(name))
    places = listing.with_bytes(service.stores.index, Sha256(name), MAX_PLACES + 1)
    return page(
        "hash",
        service.base_url,
        sha256=name,
        size=len(data),
        places=places[:MAX_PLACES],
        more=len(places) > MAX_PLACES,
        artifacts=len({each.id for each in places}),
        kind=places[0].kind if places else "skill",
    )


def source_path(host: str, repository: str) -> str:
    """Return where the page of a repository is."""
    return f"/r/{repository}" if host == GITHUB else f"/r/{host}/{repository}"


def near_names(service: Service, wanted: str) -> list[dict[str, str]]:
    """Return repositories whose name is like ``wanted``, as links."""
    known = {}
    name = wanted.lower()[:200]
    for host, repository in listing.beside(service.stores.index, name, NEAR):
        known[repository.lower()] = (repository, source_path(host, repository))
        owner = repository.partition("/")[0]
        known.setdefault(owner.lower(), (owner, f"/o/{owner}"))
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return [{"name": known[key][0], "url": known[key][1]} for key in found]


def _split(where: str) -> tuple[str, str]:
    """Tell the host from the repository, as references do."""
    first, _, rest = where.partition("/")
    if rest.count("/") >= 1 and ("." in first or ":" in first or first in {"local", "localhost"}):
        return first.lower(), rest
    return GITHUB, where
