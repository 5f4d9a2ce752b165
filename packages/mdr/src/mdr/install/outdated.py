"""What the registry has that the lock does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdr.errors import BadReference
from mdr.install.candidate import reference_to
from mdr.registry.documents import version_document

if TYPE_CHECKING:
    from mdr.install.lock import Entry
    from mdr.registry.interface import Registry
    from mdr.version.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """An entry for which there is something newer."""

    entry: Entry
    current: Version
    """The version that is locked; rebuilt from the lock when the registry no longer lists it."""
    latest: Version
    folder_only: bool
    """Whether only files around the named file changed, after the locked label."""

    def to_document(self) -> dict[str, Any]:
        """Return one element of ``items``."""
        return {
            "ref": self.entry.ref,
            "pin": self.entry.pin.value,
            "current": version_document(self.current),
            "latest": version_document(self.latest),
            "folder_only": self.folder_only,
        }


def newer(entry: Entry, registry: Registry) -> Newer | None:
    """Compare one entry with the newest version.

    Raises:
        mdr.errors.BadReference: not-found when the registry does not know the artifact.
    """
    artifact, versions = registry.versions(reference_to(entry))
    if not versions:
        raise BadReference("not-found", f"{artifact.ref} has no versions")
    latest = next((version for version in versions if version.latest), versions[0])
    current = next((v for v in versions if v.label == entry.label), None) or locked_version(entry)
    if latest.label != entry.label:
        return Newer(entry=entry, current=current, latest=latest, folder_only=False)
    revised = any(r.manifest_sha256 != entry.manifest_sha256 for r in latest.folder_revisions)
    if revised:
        return Newer(entry=entry, current=current, latest=latest, folder_only=True)
    return None


def locked_version(entry: Entry) -> Version:
    """Return what the lock says about its version, as V; the date is the label's day."""
    from mdr.version.types import Version

    day = entry.label.removeprefix("git:")[:8]
    return Version(
        label=entry.label,
        latest=False,
        committed=f"{day[:4]}-{day[4:6]}-{day[6:8]}T00:00:00Z",
        commit=entry.commit,
        size=entry.size,
        sha256=entry.sha256,
        manifest_sha256=entry.manifest_sha256,
        grade=entry.grade,
        ruleset=entry.ruleset,
    )
