"""The JSON documents A, V and F of the contract, and why bytes are not served: one place for CLI and API alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdr.artifact.types import Artifact
    from mdr.registry.interface import SourceInfo
    from mdr.version.types import FileEntry, FolderRevision, Tombstone, Version, Yanked


def artifact_document(
    artifact: Artifact, source: SourceInfo, *, badge_views_30d: int | None = None
) -> dict[str, Any]:
    """Write A: ``{id, ref, host, repository, path, name, kind, description, latest, ...}``.

    Args:
        artifact: What it is.
        source: What its host says about the repository.
        badge_views_30d: Loads of the badge in 30 days, where they are known: a server counts them.
    """
    return {
        "id": artifact.id,
        "ref": artifact.ref,
        "host": artifact.host,
        "repository": artifact.repository,
        "path": artifact.path,
        "name": artifact.name,
        "kind": artifact.kind.value,
        "description": artifact.description,
        "latest": artifact.latest,
        "previously": list(artifact.previously),
        "source": {
            "stars": source.stars,
            "license": source.license,
            "pushed": source.pushed,
            "branch": source.branch,
            "indexed_commit": source.indexed_commit,
        },
        "badge_views_30d": badge_views_30d,
    }


def version_document(version: Version) -> dict[str, Any]:
    """Write V."""
    return {
        "label": version.label,
        "latest": version.latest,
        "committed": version.committed,
        "commit": version.commit,
        "size": version.size,
        "sha256": version.sha256,
        "manifest_sha256": version.manifest_sha256,
        "grade": version.grade or None,
        "ruleset": version.ruleset,
        "same_bytes": list(version.same_bytes),
        "folder_revisions": [folder_revision_document(each) for each in version.folder_revisions],
        "yanked": yanked_document(version.yanked),
        "signature": None,
    }


def yanked_document(yanked: Yanked | None) -> dict[str, str] | None:
    """Write V's ``yanked``."""
    return None if yanked is None else {"reason": yanked.reason, "at": yanked.at}


def folder_revision_document(revision: FolderRevision) -> dict[str, Any]:
    """Write one element of V's ``folder_revisions``."""
    return {
        "commit": revision.commit,
        "committed": revision.committed,
        "manifest_sha256": revision.manifest_sha256,
    }


def file_documents(files: Iterable[FileEntry]) -> list[dict[str, Any]]:
    """Write ``files: [F]`` in the order given, which is path order wherever files are kept."""
    return [
        {"path": entry.path, "mode": entry.mode.value, "size": entry.size, "sha256": entry.sha256}
        for entry in files
    ]


def tombstone_document(tombstone: Tombstone) -> dict[str, str | None]:
    """Write ``{sha256, reason, advisory, at}``."""
    return {
        "sha256": tombstone.sha256,
        "reason": tombstone.reason,
        "advisory": tombstone.advisory,
        "at": tombstone.at,
    }
