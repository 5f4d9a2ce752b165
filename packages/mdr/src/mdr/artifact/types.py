"""The values that later stages share about artifacts.

Identity of an artifact is (host, repository, path); its id is derived from those and nothing else.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum

from mdr.digest import sha256


class Kind(StrEnum):
    """What an artifact is to an agent."""

    SKILL = "skill"
    INSTRUCTIONS = "instructions"
    RULE = "rule"
    PROMPT = "prompt"
    AGENT = "agent"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One agent-read markdown file (and, for a skill, the folder around it) in one repository."""

    host: str
    """``github.com``, another host, or ``local`` for a repository without one."""
    repository: str
    """``owner/repo`` in the host's spelling."""
    path: str
    """Path of the file in the repository, ``/`` as separator."""
    name: str
    """Display name: the folder of a SKILL.md, the stem of another file; identity never uses it."""
    kind: Kind
    description: str | None = None
    """What the latest version's frontmatter says it is for; display only."""
    latest: str | None = None
    """Label of the newest version."""
    previously: tuple[str, ...] = ()
    """Paths that git's rename detection joins to this one, newest first; identity never uses them."""
    present: bool = True
    """Whether the file exists at the head that was indexed last."""

    @property
    def id(self) -> str:
        """``art_`` plus 16 base32 characters of SHA-256 over host, lower-case owner/repo and path."""
        return artifact_id(self.host, self.repository, self.path)

    @property
    def ref(self) -> str:
        """``owner/repo/name`` with owner/repo in lower case; a host prefix for anything but GitHub."""
        prefix = "" if self.host == "github.com" else f"{self.host}/"
        return f"{prefix}{self.repository.lower()}/{self.name}"

    @property
    def folder(self) -> str:
        """The folder that belongs to the artifact, ``""`` at the root; meaningful for skills."""
        return self.path.rpartition("/")[0]


def artifact_id(host: str, repository: str, path: str) -> str:
    """Derive the id of an artifact.

    Args:
        host: Host name, lower case.
        repository: ``owner/repo``; case is ignored.
        path: Path of the file in the repository.

    Returns:
        ``art_`` followed by the first 16 characters of lower-case base32 of the SHA-256 of
        ``host LF owner/repo LF path`` (contract.md, documents of mdr, A).
    """
    digest = bytes.fromhex(sha256(f"{host}\n{repository.lower()}\n{path}".encode()))
    return "art_" + base64.b32encode(digest).decode("ascii").lower()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that looked like an artifact, or belongs to one, and is not served."""

    path: str
    reason: str
