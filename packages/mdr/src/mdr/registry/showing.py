"""What ``show`` and the API answer about one artifact or one version, with its audit computed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdr.artifact.types import Kind
from mdr.errors import IntegrityError
from mdr.registry.documents import artifact_document, file_documents, version_document

if TYPE_CHECKING:
    from mdr.digest import Sha256
    from mdr.reference.types import Reference
    from mdr.registry.interface import Registry, Resolved
    from mdr.version.types import Version


def show_artifact(registry: Registry, reference: Reference) -> dict[str, Any]:
    """Return ``{artifact, versions, audit}``; the audit is that of the latest version."""
    resolved = registry.resolve(reference)
    _, versions = registry.versions(reference)
    return {
        "artifact": artifact_document(resolved.artifact, resolved.source),
        "versions": [version_document(each) for each in versions],
        "audit": audit_document(registry, resolved),
    }


def show_version(registry: Registry, reference: Reference) -> dict[str, Any]:
    """Return ``{artifact, versions, audit, version, files}`` for one version."""
    resolved = registry.resolve(reference)
    _, versions = registry.versions(reference)
    return {
        "artifact": artifact_document(resolved.artifact, resolved.source),
        "versions": [version_document(each) for each in versions],
        "audit": audit_document(registry, resolved),
        "version": version_document(resolved.version),
        "files": file_documents(resolved.files),
    }


def content(registry: Registry, version: Version) -> bytes:
    """Return the bytes of a version's own file.

    Raises:
        mdr.errors.IntegrityError: blob-missing, blob-corrupt.
    """
    return held(registry, version.sha256, f"the file of {version.label}")


def held(registry: Registry, digest: Sha256, what: str) -> bytes:
    """Return bytes that the index says are here; nothing is ever judged without those that are lost.

    Raises:
        mdr.errors.IntegrityError: blob-missing, blob-corrupt.
    """
    data = registry.blob(digest)
    if data is None:
        raise IntegrityError(
            "blob-missing",
            f"the bytes of {what} are lost: the index names {digest[:16]}, and the store lacks it",
            hint="run mdr fsck --repair, which reads them from their repository again",
            data={"sha256": digest},
        )
    return data


def folder_content(registry: Registry, resolved: Resolved) -> tuple[tuple[str, str, bytes], ...]:
    """Return (path, mode, bytes) of every file of a version's folder.

    Raises:
        mdr.errors.IntegrityError: blob-missing, blob-corrupt.
    """
    return tuple(
        (entry.path, entry.mode.value, held(registry, entry.sha256, entry.path))
        for entry in resolved.files
    )


def audit_document(registry: Registry, resolved: Resolved) -> dict[str, Any]:
    """Audit a version: its file, the folder around it, and its conformance to the specification."""
    from mdr.audit.bundle import bundle_audit
    from mdr.audit.run import audit
    from mdr.audit.spec import spec_conformance

    artifact = resolved.artifact
    data = content(registry, resolved.version)
    skill = artifact.kind is Kind.SKILL
    folder = artifact.folder.rpartition("/")[2] or None
    document = audit(data, kind=artifact.kind).to_document(
        spec=spec_conformance(data, folder) if skill else (),
        bundle=bundle_audit(folder_content(registry, resolved)) if skill else None,
    )
    document.pop("schema", None)
    return document
