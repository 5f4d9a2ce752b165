"""A registry over HTTP. Nothing it says is believed: ids, manifests and bytes are hashed again here.

Grades are computed again by whoever reads the bytes (``add``, ``install``, ``show``); a yank is told as a
note; bytes under a tombstone are refused with the registry's reason.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mdr.digest import same, sha256
from mdr.errors import BadReference, IntegrityError, MdrError
from mdr.reference.parse import format_reference, parse
from mdr.reference.types import Label
from mdr.registry.interface import Resolved
from mdr.registry.local import notes_of
from mdr.registry.received import artifact_of, digest, files_of, part, parts, texts, version_of
from mdr.registry.transport import MIB, Patience, Transport, clean, odd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256
    from mdr.reference.types import Reference
    from mdr.settings import Settings
    from mdr.store.search import Page, Query
    from mdr.version.types import FileEntry, Version

API: Final = "/api/v1"
MAX_PAGES: Final = 50
BATCH: Final = 1_000
"""Hashes in one question."""


class RemoteRegistry:
    """Implements :class:`mdr.registry.interface.Registry` over HTTP."""

    def __init__(self, settings: Settings, patience: Patience | None = None) -> None:
        """Take the address from ``settings.registry``; nothing is asked before the first question.

        Raises:
            mdr.errors.UsageError: registry-unsupported.
        """
        assert settings.registry is not None
        self._settings = settings
        token = os.environ.get("MDR_TOKEN") or None
        self.transport = Transport(settings.registry, token=token, patience=patience)
        self._resolved: dict[str, Resolved] = {}
        self._versions: dict[str, tuple[Version, ...]] = {}
        self._views: dict[str, int] = {}

    def resolve(self, reference: Reference) -> Resolved:
        """Return the exact version a reference means.

        Raises:
            mdr.errors.BadReference: not-found, ambiguous-reference, digest-too-short.
            mdr.errors.Refusal: tombstone.
            mdr.errors.IntegrityError: registry-answer.
            mdr.errors.WorldError: registry-unreachable.
        """
        asked = format_reference(reference)
        if asked not in self._resolved:
            document = self.transport.get(f"{API}/resolve", {"ref": asked}).document()
            self._resolved[asked] = self._read(document, reference)
        return self._resolved[asked]

    def versions(self, reference: Reference) -> tuple[Artifact, tuple[Version, ...]]:
        """Return an artifact and all its versions, newest first.

        Raises:
            mdr.errors.MdrError: as :meth:`resolve`.
        """
        artifact = self.resolve(reference).artifact
        return artifact, self._listed(artifact)

    def files(self, reference: Reference) -> tuple[FileEntry, ...]:
        """Return the files of the version that a reference means."""
        return self.resolve(reference).files

    def blob(self, digest: Sha256) -> bytes | None:
        """Return the bytes of a hash, hashed again here; ``None`` when the registry lacks them.

        Raises:
            mdr.errors.Refusal: tombstone.
            mdr.errors.IntegrityError: hash-mismatch.
            mdr.errors.WorldError: registry-unreachable.
        """
        limit = self._settings.limits.max_file_bytes
        try:
            data = self.transport.get(f"{API}/blob/{digest}", limit=limit).body
        except BadReference:
            return None
        actual = sha256(data)
        if not same(actual, digest):
            raise IntegrityError(
                "hash-mismatch",
                f"the registry's bytes are not sha256:{digest}",
                hint="the registry is wrong or hostile; nothing was written",
                data={"expected": digest, "actual": actual},
            )
        return data

    def each_blob(self, digests: Sequence[Sha256]) -> Iterator[bytes | MdrError | None]:
        """Yield the bytes of each hash, or why they cannot be had."""
        for each in digests:
            try:
                yield self.blob(each)
            except MdrError as error:
                yield error

    def find_by_content(self, digests: Sequence[Sha256]) -> dict[Sha256, tuple[Resolved, ...]]:
        """Return, for each hash of a named file, the newest version of every artifact that has it."""
        found: dict[Sha256, tuple[Resolved, ...]] = {}
        for start in range(0, len(digests), BATCH):
            asked = list(digests[start : start + BATCH])
            document = self.transport.post(f"{API}/verify", {"hashes": asked}).document()
            for item in parts(document, "items"):
                name = digest(item, "sha256")
                if name in asked and (known := self._with_bytes(name, texts(item, "refs"))):
                    found[name] = known
        return found

    def search(self, query: Query) -> Page:
        """Find artifacts by words and facets.

        Raises:
            mdr.errors.UsageError: bad-cursor.
            mdr.errors.MdrError: as :meth:`resolve`.
        """
        asked = {
            "q": query.words,
            "kind": query.kind,
            "owner": query.owner,
            "grade": query.grade,
            "license": query.license,
            "host": query.host,
            "mentions": query.mentions,
            "tool": query.tool,
            "limit": str(query.limit),
            "cursor": query.cursor,
        }
        given = {name: value for name, value in asked.items() if value}
        document = self.transport.get(f"{API}/artifacts", given).document()
        page = _page(document)
        self._views.update(_views(parts(document, "items")))
        return page

    def badge_views(self, artifact_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the loads of badges that the registry tells, asked for where no search told them."""
        for key in artifact_ids:
            if key not in self._views:
                document = self.transport.get(f"{API}/artifacts/{key}").document()
                self._views.update(_views([part(document, "artifact")]))
        return {key: self._views[key] for key in artifact_ids if key in self._views}

    def _read(self, document: Mapping[str, Any], reference: Reference) -> Resolved:
        artifact, source = artifact_of(part(document, "artifact"))
        version = version_of(part(document, "version"))
        files = files_of(document, artifact, version, self._settings.limits)
        resolved = Resolved(artifact=artifact, version=version, files=files, source=source)
        told = (version,) if version.latest else self._listed(artifact)
        return replace(resolved, notes=notes_of(artifact, version, told, reference))

    def _listed(self, artifact: Artifact) -> tuple[Version, ...]:
        if artifact.id not in self._versions:
            self._versions[artifact.id] = tuple(self._pages(artifact))
        return self._versions[artifact.id]

    def _pages(self, artifact: Artifact) -> list[Version]:
        versions: list[Version] = []
        query = {"limit": "1000"}
        for _ in range(MAX_PAGES):
            address = f"{API}/artifacts/{artifact.id}/versions"
            document = self.transport.get(address, query, limit=32 * MIB).document()
            versions += [version_of(each) for each in parts(document, "items")]
            cursor = document.get("next_cursor")
            if cursor is None:
                break
            if not isinstance(cursor, str) or cursor == query.get("cursor"):
                raise odd("its list of versions does not end")
            query = {"limit": "1000", "cursor": cursor}
        else:
            raise odd("its list of versions does not end")
        if not versions or len({each.label for each in versions}) != len(versions):
            raise odd("its list of versions is empty, or names one twice")
        return versions

    def _with_bytes(self, name: Sha256, refs: Sequence[str]) -> tuple[Resolved, ...]:
        """Resolve what is said to have certain bytes, and keep what really has."""
        found = []
        for ref in refs:
            reference = parse(ref)
            if not isinstance(reference.selector, Label):
                raise odd("it names versions without a label")
            resolved = self.resolve(reference)
            if same(resolved.version.sha256, name):
                found.append(resolved)
        return tuple(found)


class Writer:
    """Changes a remote registry, with a token."""

    def __init__(self, registry: RemoteRegistry) -> None:
        self._registry = registry

    def yank(self, reference: Reference, *, reason: str | None) -> Version:
        """Yank a version, or with ``None`` offer it again.

        Raises:
            mdr.errors.MdrError: what the registry says.
        """
        resolved = self._registry.resolve(reference)
        label = quote(resolved.version.label, safe=":")
        path = f"{API}/artifacts/{resolved.artifact.id}/versions/{label}/yank"
        document = {} if reason is None else {"reason": reason}
        self._registry.transport.write("DELETE" if reason is None else "PUT", path, document)
        return resolved.version

    def tombstone(self, name: Sha256, *, reason: str | None, advisory: str | None = None) -> None:
        """Withdraw bytes, or with ``None`` serve them again.

        Raises:
            mdr.errors.MdrError: what the registry says.
        """
        document = {} if reason is None else {"reason": reason, "advisory": advisory}
        method = "DELETE" if reason is None else "PUT"
        self._registry.transport.write(method, f"{API}/tombstones/{name}", document)


def _views(artifacts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Read how often badges were loaded; anything else than a number is not known."""
    told = {str(each.get("id")): each.get("badge_views_30d") for each in artifacts}
    return {key: views for key, views in told.items() if type(views) is int and views >= 0}


def _page(document: Mapping[str, Any]) -> Page:
    from mdr.store.search import Page

    facets, total, cursor = (
        document.get("facets"),
        document.get("total"),
        document.get("next_cursor"),
    )
    if not isinstance(facets, dict) or type(total) is not int or total < 0:
        raise odd("a search has no facets or total")
    if cursor is not None and (not isinstance(cursor, str) or not cursor.isprintable()):
        raise odd("a cursor is not one")
    counted = {
        clean(name): {
            clean(value): count for value, count in values.items() if isinstance(count, int)
        }
        for name, values in facets.items()
        if isinstance(values, dict)
    }
    hits = tuple(_hit(each) for each in parts(document, "items"))
    return Page(total=total, hits=hits, facets=counted, next_cursor=cursor)


def _hit(document: Mapping[str, Any]) -> Any:
    from mdr.audit.types import GRADES
    from mdr.store.search import Hit

    artifact, source = artifact_of(document)
    grade, score = document.get("grade"), document.get("score")
    row = {
        "stars": source.stars,
        "license": source.license,
        "pushed": source.pushed,
        "branch": source.branch,
        "head": source.indexed_commit,
    }
    return Hit(
        artifact=artifact,
        grade=grade if grade in GRADES else None,
        sha256=None if document.get("sha256") is None else digest(document, "sha256"),
        score=float(score) if isinstance(score, int | float) else None,
        row=row,
    )
