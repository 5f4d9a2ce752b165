"""Every question that a reader may ask a registry, answered in the documents of the contract.

API, pages and tools for agents answer with these and make no document of their own; ``schema`` stands
first, as in the command line's ``--json``. Each method is a function of the stores' state, so that an
answer may be kept until that state changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mdr.artifact.types import Kind
from mdr.digest import Sha256, is_sha256
from mdr.errors import BadReference, UsageError
from mdr.reference.parse import format_reference, parse, parse_selector
from mdr.reference.types import DigestPrefix, Label, Latest, Reference
from mdr.registry.documents import (
    artifact_document,
    file_documents,
    tombstone_document,
    version_document,
)
from mdr.registry.local import LocalRegistry
from mdr.registry.showing import audit_document
from mdr.store.cursor import bad_cursor, read_cursor, write_cursor
from mdr.store.together import together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdr.artifact.types import Artifact
    from mdr.reference.types import Selector
    from mdr.registry.interface import Resolved
    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.store.search import Query
    from mdr.version.types import Version

MAX_HASHES: Final = 1_000
"""Hashes in one question of :meth:`Reading.verify`."""
MAX_VERSIONS: Final = 1_000
"""Versions on one page of :meth:`Reading.versions`."""
MAX_AUDITS: Final = 2_000
"""Audits kept; one is a pure function of bytes, kind and ruleset, and never grows old."""
BLOB_PATH: Final = "/api/v1/blob/"


class Reading:
    """Answers from stores that are open; safe to share between threads."""

    def __init__(self, stores: Stores, settings: Settings) -> None:
        """Take what a server holds open. Nothing is ever indexed because somebody reads."""
        from dataclasses import replace

        self.stores = stores
        self.registry = LocalRegistry(replace(settings, index_on_demand=False), stores)
        self._audits: dict[tuple[str, ...], dict[str, Any]] = {}

    def search(self, query: Query) -> dict[str, Any]:
        """Answer ``GET /artifacts``.

        Raises:
            mdr.errors.UsageError: bad-cursor.
        """
        from mdr.registry.searching import search_document

        document = search_document(query.words, self.registry.search(query))
        views = self._views([item["id"] for item in document["items"]])
        for item in document["items"]:
            item["badge_views_30d"] = views.get(item["id"], 0)
        return {"schema": "mdr.search/1", **document}

    def artifact(self, artifact_id: str) -> dict[str, Any]:
        """Answer ``GET /artifacts/{id}``: the document of ``show``, audited by the latest version.

        Raises:
            mdr.errors.BadReference: not-found.
        """
        resolved = self._resolve(self.found(artifact_id), Latest())
        return {
            "schema": "mdr.show/1",
            "artifact": self._artifact(resolved),
            "versions": [version_document(each) for each in self._versions(resolved.artifact)],
            "audit": self._audit(resolved),
        }

    def versions(
        self, artifact_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> dict[str, Any]:
        """Answer ``GET /artifacts/{id}/versions``, newest first.

        Args:
            artifact_id: ``art_...``.
            limit: Versions on a page, 1 to 1,000.
            cursor: ``next_cursor`` of the page before.

        Raises:
            mdr.errors.BadReference: not-found.
            mdr.errors.UsageError: bad-cursor.
        """
        artifact = self.found(artifact_id)
        items = self._versions(artifact)
        start = 0 if cursor is None else _after(items, cursor)
        page = items[start : start + max(1, min(limit, MAX_VERSIONS))]
        more = start + len(page) < len(items)
        return {
            "schema": "mdr.versions/1",
            "artifact": artifact.id,
            "items": [version_document(each) for each in page],
            "next_cursor": write_cursor({"after": page[-1].label}) if more and page else None,
        }

    def version(self, artifact_id: str, label: str) -> dict[str, Any]:
        """Answer ``GET /artifacts/{id}/versions/{label}``; ``label`` may be a SHA-256 too.

        Raises:
            mdr.errors.BadReference: not-found, bad-reference, digest-too-short, ambiguous-reference.
            mdr.errors.Refusal: tombstone.
        """
        resolved = self.resolved(artifact_id, label)
        return {
            "schema": "mdr.version/1",
            "artifact": self._artifact(resolved),
            "version": version_document(resolved.version),
            "files": file_documents(resolved.files),
            "audit": self._audit(resolved),
        }

    def diff(self, artifact_id: str, before: str, after: str) -> dict[str, Any]:
        """Answer ``GET /artifacts/{id}/diff?from=&to=``; both are labels, hashes or ``latest``.

        Raises:
            mdr.errors.BadReference: not-found, bad-reference, digest-too-short, ambiguous-reference.
            mdr.errors.Refusal: tombstone.
        """
        from mdr.registry.compare import compare_references

        artifact = self.found(artifact_id)
        old, new = (reference_to(artifact, selector_of(text)) for text in (before, after))
        document = compare_references(self.registry, old, new).to_document()
        views = self._views([artifact.id]).get(artifact.id, 0)
        document["artifact"] |= {"badge_views_30d": views}
        return {"schema": "mdr.diff/1", **document}

    def resolve(self, text: str) -> dict[str, Any]:
        """Answer ``GET /resolve?ref=``.

        Raises:
            mdr.errors.BadReference: bad-reference, digest-too-short, not-found, ambiguous-reference.
            mdr.errors.Refusal: tombstone.
        """
        reference = parse(text)
        resolved = self.registry.resolve(reference)
        return {
            "schema": "mdr.resolve/1",
            "ref": text,
            "resolved": exact(resolved, reference),
            "artifact": self._artifact(resolved),
            "version": version_document(resolved.version),
            "files": file_documents(resolved.files),
            "blob": BLOB_PATH + resolved.version.sha256,
        }

    def blob(self, digest: Sha256) -> bytes:
        """Answer ``GET /blob/{sha256}``.

        Raises:
            mdr.errors.BadReference: not-found.
            mdr.errors.Refusal: tombstone.
            mdr.errors.IntegrityError: blob-corrupt.
        """
        from mdr.registry.withdrawals import refuse_tombstones

        refuse_tombstones(self.stores, [digest])
        data = self.stores.blobs.get(digest)
        if data is None:
            raise BadReference(
                "not-found",
                f"no bytes with the SHA-256 {digest} are held here",
                hint="search for the artifact, or index the repository that holds it",
                data={"sha256": digest},
            )
        return data

    def audit(self, digest: Sha256, kind: str, ruleset: str | None = None) -> dict[str, Any]:
        """Answer ``GET /audit/{sha256}?kind=&ruleset=``: the file alone, without its folder.

        Raises:
            mdr.errors.BadReference: not-found.
            mdr.errors.Refusal: tombstone.
            mdr.errors.UsageError: unknown-ruleset.
        """
        from mdr.audit import newest
        from mdr.audit.run import audit

        rules = ruleset or newest.LATEST
        data = self.blob(digest)
        key = ("file", digest, kind, rules)
        if (kept := self._audits.get(key)) is None:
            kept = self._keep(key, audit(data, kind=Kind(kind), ruleset=rules).to_document())
        return dict(kept)

    def verify(self, hashes: Sequence[str]) -> dict[str, Any]:
        """Answer ``POST /verify``, in the order asked.

        Raises:
            mdr.errors.UsageError: invalid.
        """
        if len(hashes) > MAX_HASHES or not all(map(is_sha256, hashes)):
            raise UsageError(
                "invalid",
                f"hashes must be at most {MAX_HASHES} SHA-256 of 64 lower-case digits",
                hint="send them in several requests",
            )
        wanted = [Sha256(text) for text in dict.fromkeys(hashes)]
        with together(self.stores.index.engine):
            rows = self._known(wanted)
        return {"schema": "mdr.verify-hashes/1", "items": [rows[Sha256(each)] for each in hashes]}

    def found(self, artifact_id: str) -> Artifact:
        """Return an artifact.

        Raises:
            mdr.errors.BadReference: not-found.
        """
        artifact = self.stores.index.artifact(artifact_id)
        if artifact is None:
            raise BadReference(
                "not-found",
                f"there is no artifact {artifact_id}",
                hint="ids come from /api/v1/artifacts and /api/v1/resolve",
                data={"id": artifact_id},
            )
        return artifact

    def resolved(self, artifact_id: str, label: str = "latest") -> Resolved:
        """Return a version with its files as values: by label, by SHA-256, or ``latest``.

        Raises:
            mdr.errors.BadReference: not-found, bad-reference, digest-too-short, ambiguous-reference.
            mdr.errors.Refusal: tombstone.
        """
        return self._resolve(self.found(artifact_id), selector_of(label))

    def _resolve(self, artifact: Artifact, selector: Selector) -> Resolved:
        return self.registry.resolve(reference_to(artifact, selector))

    def _versions(self, artifact: Artifact) -> tuple[Version, ...]:
        from mdr.audit import newest
        from mdr.registry.regrading import graded_now

        found = self.stores.index.versions(artifact, newest.LATEST)
        if all(each.grade for each in found):
            return found
        return graded_now(self.stores, artifact.kind, found, newest.LATEST)

    def _artifact(self, resolved: Resolved) -> dict[str, Any]:
        views = self._views([resolved.artifact.id]).get(resolved.artifact.id, 0)
        return artifact_document(resolved.artifact, resolved.source, badge_views_30d=views)

    def _audit(self, resolved: Resolved) -> dict[str, Any]:
        """Return the audit of a version with its folder, computed once."""
        artifact, version = resolved.artifact, resolved.version
        key = (
            artifact.path,
            artifact.kind,
            version.sha256,
            version.manifest_sha256,
            version.ruleset,
        )
        if (kept := self._audits.get(key)) is None:
            kept = self._keep(key, audit_document(self.registry, resolved))
        return kept

    def _keep(self, key: tuple[str, ...], document: dict[str, Any]) -> dict[str, Any]:
        while len(self._audits) >= MAX_AUDITS:
            self._audits.pop(next(iter(self._audits)), None)
        self._audits[key] = document
        return document

    def _views(self, ids: Sequence[str]) -> Mapping[str, int]:
        from datetime import UTC, datetime

        from mdr.store.badges import views_30d

        return views_30d(self.stores.index, ids, datetime.now(UTC).date())

    def _by_content(
        self, digests: Sequence[Sha256]
    ) -> dict[Sha256, tuple[tuple[Artifact, Version], ...]]:
        """Return, for each hash of a named file, the newest version of every artifact that has it."""
        from mdr.audit import newest

        index = self.stores.index
        artifacts = index.artifacts_with(digests)
        versions = index.versions_of(artifacts, newest.LATEST)
        found: dict[Sha256, dict[str, tuple[Artifact, Version]]] = {}
        wanted = frozenset(digests)
        for artifact in artifacts:
            for version in versions[artifact.id]:
                if version.sha256 in wanted:
                    found.setdefault(version.sha256, {}).setdefault(
                        artifact.id, (artifact, version)
                    )
        return {digest: tuple(each.values()) for digest, each in found.items()}

    def _known(self, wanted: Sequence[Sha256]) -> dict[Sha256, dict[str, Any]]:
        """Answer about each hash; what the database is asked does not grow with their number."""
        index = self.stores.index
        buried, found = index.tombstones(wanted), self._by_content(wanted)
        artifacts = {artifact.id: artifact for each in found.values() for artifact, _ in each}
        shared = index.namesakes(list(artifacts.values()))
        rows = {}
        for digest in wanted:
            places, tombstone = found.get(digest, ()), buried.get(digest)
            _, version = places[0] if places else (None, None)
            rows[digest] = {
                "sha256": digest,
                "known": version is not None or self.stores.blobs.has(digest),
                "size": None if version is None else version.size,
                "grade": None if version is None else version.grade or None,
                "ruleset": None if version is None else version.ruleset,
                "refs": [
                    _name(artifact, each.label, shared.get(artifact.id, 0))
                    for artifact, each in places
                ],
                "advisories": [tombstone.advisory] if tombstone and tombstone.advisory else [],
                "tombstone": None if tombstone is None else tombstone_document(tombstone),
            }
        return rows


def _name(artifact: Artifact, label: str, namesakes: int) -> str:
    """Write ``owner/repo/name@label``, by path where several artifacts share the name."""
    named = namesakes <= 1 and artifact.present
    return format_reference(
        Reference(
            host=artifact.host,
            repository=artifact.repository.lower(),
            name=artifact.name if named else None,
            path=None if named else artifact.path,
            selector=Label(label=label),
        )
    )


def reference_to(artifact: Artifact, selector: Selector) -> Reference:
    """Name an artifact by its path, which is never ambiguous."""
    return Reference(
        host=artifact.host,
        repository=artifact.repository,
        name=None,
        path=artifact.path,
        selector=selector,
    )


def selector_of(text: str) -> Selector:
    """Read ``latest``, a label, ``sha256:HEX`` or bare digits.

    Raises:
        mdr.errors.BadReference: bad-reference, digest-too-short.
    """
    bare = text.lower()
    if bare and set(bare) <= set("0123456789abcdef"):
        return parse_selector(f"sha256:{bare}")
    return parse_selector(text)


def exact(resolved: Resolved, asked: Reference) -> str:
    """Write ``owner/repo/name@sha256:64HEX``, by path where it was asked for by path."""
    artifact = resolved.artifact
    return format_reference(
        Reference(
            host=artifact.host,
            repository=artifact.repository.lower(),
            name=None if asked.name is None else artifact.name,
            path=None if asked.name is not None else artifact.path,
            selector=DigestPrefix(digits=resolved.version.sha256),
        )
    )


def _after(versions: Sequence[Version], cursor: str) -> int:
    """Return where the page after ``cursor`` starts."""
    try:
        label = read_cursor(cursor)["after"]
        return next(i for i, each in enumerate(versions, 1) if each.label == label)
    except (ValueError, KeyError, TypeError, StopIteration):
        raise bad_cursor("list") from None
