"""Ask GitHub and turn its answer into what the index keeps; a silent GitHub never stops an indexing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mdr.errors import SourceError
from mdr.source.github import Described, Limited, Missing, Unchanged, describe
from mdr.source.locate import locate
from mdr.store.rows import HostWords

if TYPE_CHECKING:
    from mdr.settings import Settings
    from mdr.source.locate import Location
    from mdr.store.rows import SourceRow

Asked = tuple["Location", HostWords | None, tuple[str, ...]]


def ask(location: Location, known: SourceRow | None, settings: Settings, *, named: bool) -> Asked:
    """Ask about a repository.

    Args:
        location: On GitHub.
        known: Where the last answer is kept, ``None`` for a repository that is not held.
        settings: API address and token.
        named: Whether ``--as`` names the identity; then GitHub's spelling does not change it.

    Returns:
        The location, in GitHub's spelling or at its new name; what to keep, ``None`` to keep what is
        known; and what to tell the person.
    """
    if known is not None and known.retry_after is not None and known.retry_after > time.time():
        return location, None, (_pause(known.retry_after),)
    try:
        answer = describe(
            location.repository,
            api=settings.github_api,
            token=settings.github_token,
            etag=known.etag if known is not None else None,
        )
    except SourceError as error:
        return location, None, (error.message,)
    match answer:
        case Unchanged():
            return location, None, ()
        case Missing():
            return location, None, ("GitHub's API does not show this repository",)
        case Limited(until=until):
            return location, replace(_words(known), retry_after=until), (_pause(until),)
        case Described():
            return _described(location, answer, named=named)


def _described(location: Location, answer: Described, *, named: bool) -> Asked:
    words = HostWords(
        stars=answer.stars, license=answer.license, pushed=answer.pushed, etag=answer.etag
    )
    if named or answer.repository == location.repository:
        return location, words, ()
    try:
        current = locate(f"github:{answer.repository}")
    except Exception as error:  # noqa: BLE001 - a name we cannot hold is not GitHub's usual answer
        return location, words, (f"GitHub calls it {answer.repository!r}: {error}",)
    renamed = answer.repository.lower() != location.repository.lower()
    notes = (f"{location.repository} is now {answer.repository}",) if renamed else ()
    return current, words, notes


def _words(known: SourceRow | None) -> HostWords:
    if known is None:
        return HostWords()
    return HostWords(stars=known.stars, license=known.license, pushed=known.pushed, etag=known.etag)


def _pause(until: int) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
    return f"GitHub's rate limit is reached until {at}; set GITHUB_TOKEN for a higher one"
