"""What mdr itself wrote on this machine: the proof that a folder may be replaced.

Kept in the data folder, never inside an artifact's folder, since a file added there would change what
the agent reads and what the manifest says. A missing or damaged receipt only makes mdr more careful.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING, Final

from mdr.digest import Sha256, sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEPT: Final = 4
"""Manifests remembered per place, newest first."""
MAX_BYTES: Final = 16 << 20


class Receipts:
    """Manifests (modes left out) that were written below one root."""

    def __init__(self, data: Path, root: Path) -> None:
        self._path = data / "receipts" / f"{sha256(os.fsencode(root))[:32]}.json"
        self._places = _read(self._path)

    def wrote(self, place: str, manifest: Sha256) -> bool:
        """Say whether mdr has written ``manifest`` at ``place`` before."""
        return manifest in self._places.get(place, ())

    def record(self, written: Mapping[str, Sha256]) -> None:
        """Remember what is about to be written; called before the bytes appear.

        A data folder that cannot be written costs only the receipt, not the install.
        """
        for place, manifest in written.items():
            earlier = [other for other in self._places.get(place, ()) if other != manifest]
            self._places[place] = (manifest, *earlier)[:KEPT]
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._places, sort_keys=True), encoding="utf-8")
            temporary.replace(self._path)
        except OSError:
            return


def _read(path: Path) -> dict[str, tuple[Sha256, ...]]:
    try:
        with path.open("rb") as stream:
            document = json.loads(stream.read(MAX_BYTES))
        return {
            str(place): tuple(Sha256(str(manifest)) for manifest in manifests)
            for place, manifests in document.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
