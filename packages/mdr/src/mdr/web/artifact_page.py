"""``/a/{id}``: what the file is and says, how to install it, its versions, its audit, its source."""

from __future__ import annotations

import secrets
import threading
import zlib
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mdr.digest import Sha256
from mdr.reference.parse import format_reference
from mdr.reference.types import DigestPrefix, Label, Latest, Reference
from mdr.store.badges import views_30d
from mdr.web.badge import badge
from mdr.web.excerpt import excerpt
from mdr.web.pages import html_answer, page
from mdr.web.pictures import pictures_of
from mdr.web.targets import commit_url, repository_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdr.answers.answer import Answer
    from mdr.answers.service import Service

SHOWN_DIGITS: Final = 16
"""Digits of a SHA-256 in the line to copy, as on the seed page; the lock keeps all 64."""
VIEWS_FRESH: Final = 1.0
"""Seconds for which a page may show an older number of badge views."""
MAX_VERSIONS: Final = 200
"""Versions in the table; the API lists the others."""
KEPT: Final = 8_000
"""Pages kept, compressed: 3 to 5 KB each."""
MARK: Final = f"views-{secrets.token_hex(16)}".encode()
"""Stands for the number of badge views in a drawn page; no file can hold it."""


class Drawn:
    """Pages that were drawn, but for the number of badge views, kept while the stores stay the same."""

    def __init__(self, room: int = KEPT) -> None:
        """Take how many pages to keep."""
        self._room = room
        self._lock = threading.Lock()
        self._pages: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def get(self, artifact_id: str, token: str) -> bytes | None:
        """Return the page that was drawn in the state ``token``."""
        with self._lock:
            kept = self._pages.get(artifact_id)
            if kept is None or kept[0] != token:
                return None
            self._pages.move_to_end(artifact_id)
        return zlib.decompress(kept[1])

    def put(self, artifact_id: str, token: str, body: bytes) -> None:
        """Keep a page, and forget the least recently asked for."""
        small = zlib.compress(body, 1)
        with self._lock:
            self._pages[artifact_id] = (token, small)
            self._pages.move_to_end(artifact_id)
            if len(self._pages) > self._room:
                self._pages.popitem(last=False)


def artifact_page(service: Service, artifact_id: str, drawn: Drawn) -> Answer:
    """Write the page of an artifact: drawn once for each state of the stores, numbered each time.

    Raises:
        mdr.errors.BadReference: not-found.
        mdr.errors.Refusal: tombstone.
    """
    from mdr.store.state import state_token

    token = state_token(
        service.stores
    )  # before the page is drawn, so that it is never called newer
    body = drawn.get(artifact_id, token)
    if body is None:
        body = _drawn(service, artifact_id)
        drawn.put(artifact_id, token, body)
    today = datetime.now(UTC).date()
    views = views_30d(service.stores.index, [artifact_id], today)[artifact_id]
    return html_answer(body.replace(MARK, f"{views:,}".encode()), fresh_seconds=VIEWS_FRESH)


def _drawn(service: Service, artifact_id: str) -> bytes:
    document = service.reading.artifact(artifact_id)
    artifact, versions = document["artifact"], document["versions"]
    latest = next((each for each in versions if each["latest"]), versions[0])
    return page(
        "artifact",
        service.base_url,
        views=MARK.decode(),
        a=artifact,
        latest=latest,
        versions=with_links(artifact, versions)[:MAX_VERSIONS],
        more_versions=max(0, len(versions) - MAX_VERSIONS),
        audit=document["audit"],
        excerpt=excerpt(service.reading.blob(Sha256(latest["sha256"]))),
        names=references(service, artifact, latest),
        pictures=pictures_of(versions),
        badge_svg=badge(artifact["name"], latest["grade"]),
        badge_markdown=badge_markdown(service.base_url, artifact),
        repository_url=repository_url(artifact["host"], artifact["repository"]),
        recompute=recompute_command(service.base_url, latest["sha256"], artifact["kind"]),
    ).body


def with_links(
    artifact: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Give every version the label of the one before it, and the address of its commit."""
    older = [*(each["label"] for each in versions[1:]), None]
    return [
        {
            **each,
            "before": before,
            "commit_url": commit_url(artifact["host"], artifact["repository"], each["commit"]),
        }
        for each, before in zip(versions, older, strict=True)
    ]


def references(
    service: Service, artifact: Mapping[str, Any], version: Mapping[str, Any]
) -> dict[str, str]:
    """Return what to type: by label, by hash, and without a version; by path where the name is shared."""
    index = service.stores.index
    source = index.source(artifact["host"], artifact["repository"])
    namesakes = index.artifacts_named(source.id, artifact["name"]) if source is not None else []
    shared = sum(each.present for each in namesakes) > 1 or not any(
        each.path == artifact["path"] and (each.present or len(namesakes) == 1)
        for each in namesakes
    )
    by_path = artifact["path"] if shared else None

    def written(selector: Label | DigestPrefix | Latest) -> str:
        return format_reference(
            Reference(
                host=artifact["host"],
                repository=artifact["repository"].lower(),
                name=None if by_path else artifact["name"],
                path=by_path,
                selector=selector,
            )
        )

    return {
        "bare": written(Latest()),
        "label": written(Label(label=version["label"])),
        "sha256": written(DigestPrefix(digits=version["sha256"][:SHOWN_DIGITS])),
    }


def badge_markdown(base_url: str, artifact: Mapping[str, Any]) -> str:
    """Write the Markdown of a badge that leads to the artifact's page."""
    name = "".join(f"\\{char}" if char in "\\[]!`*_<>" else char for char in artifact["name"])
    name = " ".join(name.split())
    return f"[![{name}]({base_url}/badge/{artifact['id']}.svg)]({base_url}/a/{artifact['id']})"


def recompute_command(base_url: str, digest: str, kind: str) -> str:
    """Write the command with which anybody gets the same grade from the same bytes."""
    return f"curl -s {base_url}/api/v1/blob/{digest} | mdr audit - --kind {kind}"
