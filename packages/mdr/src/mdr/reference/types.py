"""The parsed form of a reference. Parsing lives in :mod:`mdr.reference.parse`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """No ``@`` or ``@latest``: the newest label, resolved at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """``@git:YYYYMMDD.sha7``."""

    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestPrefix:
    """``@sha256:HEX`` with 12 to 64 digits, lower case."""

    digits: str


Selector = Latest | Label | DigestPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """``[host/]owner/repo/name[@selector]`` or ``[host/]owner/repo:path[@selector]``."""

    host: str
    """``github.com`` unless the reference names another."""
    repository: str
    """``owner/repo`` as typed; lookup ignores case."""
    name: str | None
    """Exactly one of ``name`` and ``path`` is set."""
    path: str | None
    selector: Selector
