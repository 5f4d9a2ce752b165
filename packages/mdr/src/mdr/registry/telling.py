"""What readers find an artifact by: its description, the hosts and tools it names, its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mdr.store.search import MAX_BODY, Document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256

MAX_DESCRIPTION: Final = 4_096
"""Characters of a description that the index keeps."""
MAX_MENTIONS: Final = 500
"""Hosts, and tools, of one file that the index keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one file tells about itself."""

    description: str | None = None
    hosts: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


def tell(data: bytes) -> Told:
    """Read a file."""
    from mdr.audit.semantics import semantics

    found = semantics(data)
    return Told(
        description=describe(data),
        hosts=_kept((host for host in found.hosts if not host.startswith(".")), lower=True),
        tools=_kept(found.tools, lower=False),
    )


def describe(data: bytes) -> str | None:
    """Return what the frontmatter says the file is for, on one line."""
    from mdr.artifact.frontmatter import read_frontmatter

    values = read_frontmatter(data).values
    text = values.get("description") if values is not None else None
    if not isinstance(text, str):
        return None
    return _storable(" ".join(text.split())[:MAX_DESCRIPTION]) or None


def document(
    artifact: Artifact, digest: Sha256, data: bytes | None, told: Told | None = None
) -> Document:
    """Write what search keeps of an artifact.

    Args:
        artifact: As readers see it.
        digest: Of its offered version.
        data: The bytes; ``None`` when they are withdrawn or lost, and nothing is to be found by them.
        told: What :func:`tell` returned for them, when that is known.
    """
    if data is None:
        return Document(artifact=artifact, text="", sha256=digest)
    told = told or tell(data)
    return Document(
        artifact=artifact,
        text=data.decode("utf-8", "replace")[:MAX_BODY],
        sha256=digest,
        hosts=told.hosts,
        tools=told.tools,
    )


def _kept(values: Iterable[str], *, lower: bool) -> tuple[str, ...]:
    texts = (_storable(value.lower() if lower else value) for value in values)
    return tuple(dict.fromkeys(text for text in texts if text))[:MAX_MENTIONS]


def _storable(text: str) -> str:
    """Replace what a database cannot hold: half characters and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
