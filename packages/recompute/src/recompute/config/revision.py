"""Megatron Core revisions in order, and what a version string means.

Sources: tags and pins of NVIDIA/Megatron-LM and NVIDIA-NeMo/Megatron-Bridge (git ls-tree of
3rdparty/Megatron-LM at each Bridge tag).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from recompute.errors import ConfigError


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Revision:
    """One revision that rules speak about.

    ``dev`` is a branch that left main after 0.19; it orders after 0.19 and rules name it explicitly.
    """

    name: str
    """``0.8`` to ``0.19``, ``pin`` (0.20 at 2a75ac12, the pin of Bridge HEAD), ``main``, ``dev``."""

    @property
    def index(self) -> int:
        """Position in :data:`REVISIONS`."""
        return ORDER[self.name]

    def __lt__(self, other: Revision) -> bool:
        """Order by position."""
        return self.index < other.index


NAMES: Final = (
    "0.8",
    "0.9",
    "0.10",
    "0.11",
    "0.12",
    "0.13",
    "0.14",
    "0.15",
    "0.16",
    "0.17",
    "0.18",
    "0.19",
    "pin",
    "main",
    "dev",
)
ORDER: Final = {name: position for position, name in enumerate(NAMES)}
REVISIONS: Final = tuple(Revision(name) for name in NAMES)
NEWEST_RELEASE: Final = Revision("0.19")

COMMITS: Final[Mapping[str, str]] = {
    "2a75ac12": "pin",
    "d98e8a64": "main",
    "d48bd6be": "dev",
    "0d8e0714": "0.16",
    "cba6b0ed": "0.16",
    "b0cc2706": "0.16",
    "55ac7082": "0.16",
    "d7288711": "0.17",
    "2edffadb": "0.17",
    "d0b3b775": "0.18",
    "458c8d0e": "0.18",
    "cd4afffa": "0.19",
}
"""First eight digits of a Megatron-LM commit -> the revision that it is or belongs to."""

BRIDGE_PINS: Final[Mapping[str, str]] = {
    "0.2": "0.16",
    "0.3": "0.16",
    "0.4": "0.17",
    "0.5": "0.18",
    "0.6": "0.19",
    "main": "pin",
    "head": "pin",
}
"""Megatron Bridge release -> the Megatron Core that it pins. 0.4.0 pins 0.17.0rc0, 0.4.2 pins 0.17.1."""

UNRELEASED: Final = {"0.20": "pin"}
"""0.20.0 names a line that was not released when this table was made: the commit that Bridge pins."""

_VERSION: Final = re.compile(
    r"(?:core[_-])?[vr]?(\d{1,3})\.(\d{1,3})(?:\.\d{1,3}){0,2}(?:[.-]?(?:a|b|rc|dev|post)\d{0,4})*(?:\+[\w.]{1,40})?"
)
_COMMIT: Final = re.compile(r"[0-9a-f]{7,40}")


def parse_revision(text: str) -> Revision:
    """Return the revision that a version of Megatron Core means.

    Args:
        text: ``0.16.1``, ``core_v0.19.0``, ``core_r0.17.0``, ``0.20.0``, ``main``, ``dev``, ``pin`` or
            a commit of the table.

    Raises:
        ConfigError: ``unknown-revision``; a version that is not in the table is never guessed.
    """
    name = text.strip().lower()
    if name in ORDER:
        return Revision(name)
    match = _VERSION.fullmatch(name)
    if match is not None:
        minor = f"{int(match[1])}.{int(match[2])}"
        minor = UNRELEASED.get(minor, minor)
        if minor in ORDER:
            return Revision(minor)
    if _COMMIT.fullmatch(name):
        for commit, revision in COMMITS.items():
            if commit.startswith(name[:8]) and len(name) >= 7:
                return Revision(revision)
    raise _unknown("Megatron Core", text, NAMES)


def parse_bridge_version(text: str) -> Revision:
    """Return the Megatron Core revision that a Megatron Bridge version pins.

    Raises:
        ConfigError: ``unknown-revision``.
    """
    name = text.strip().lower()
    match = _VERSION.fullmatch(name)
    key = f"{int(match[1])}.{int(match[2])}" if match is not None else name
    if key in BRIDGE_PINS:
        return Revision(BRIDGE_PINS[key])
    raise _unknown("Megatron Bridge", text, tuple(BRIDGE_PINS))


def _unknown(what: str, text: str, known: tuple[str, ...]) -> ConfigError:
    shown = text.strip()[:60]
    hint = f"known: {', '.join(known)}"
    if re.fullmatch(r"0\.[12]", shown):
        hint = f"YAML reads 0.{shown[2:]}0 as {shown}: write it in quotes; {hint}"
    return ConfigError(
        "unknown-revision",
        f"unknown revision of {what}: {shown!r}",
        hint=hint,
        data={"revision": text[:200], "known": list(known)},
    )
