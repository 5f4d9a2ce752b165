"""The registry in the data folder of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mdr.errors import BadReference, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256
    from mdr.reference.types import Reference
    from mdr.registry.interface import Resolved
    from mdr.settings import Settings
    from mdr.version.types import FileEntry, Version


def settings_for(settings: Settings) -> Settings:
    """Point ``data`` at the folder that ``registry`` names."""
    if settings.registry is None:
        return settings
    parts = urlsplit(settings.registry)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise UsageError(
            "registry-unsupported",
            f"cannot use the registry {settings.registry!r}: only file:///DIR is supported",
            hint="leave out --registry and MDR_REGISTRY to use the local data folder",
        )
    return replace(settings, data=Path(unquote(parts.path)), registry=None, index_on_demand=False)


class LocalRegistry:
    """Implements :class:`mdr.registry.interface.Registry` over blob store and index."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def resolve(self, reference: Reference) -> Resolved:
        """Return the exact version a reference means."""
        raise BadReference("not-found", f"{reference.repository} is not indexed")

    def versions(self, reference: Reference) -> tuple[Artifact, tuple[Version, ...]]:
        """Return an artifact and all its versions, newest first."""
        raise BadReference("not-found", f"{reference.repository} is not indexed")

    def files(self, reference: Reference) -> tuple[FileEntry, ...]:
        """Return the files of the version that a reference means."""
        return self.resolve(reference).files

    def blob(self, digest: Sha256) -> bytes | None:  # noqa: ARG002
        """Return the bytes of a hash, or ``None``."""
        return None

    def find_by_content(self, digests: Sequence[Sha256]) -> dict[Sha256, tuple[Resolved, ...]]:  # noqa: ARG002
        """Return the versions that have exactly these bytes."""
        return {}
