"""Limits and places, read from the environment at the edge and passed inward as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How many connections to PostgreSQL a process keeps, and how long it waits."""

    size: int = 5
    """Connections kept open; as many again are opened while they are needed."""
    wait_seconds: int = 10
    """How long a reader waits for a free connection."""
    statement_seconds: int = 120
    """After which the server ends a statement; 0 means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds on hostile input; exceeding one is a named skip or error, never a hang."""

    max_file_bytes: int = 8 * MIB
    """Largest single file of an artifact's folder that is stored."""
    max_folder_bytes: int = 64 * MIB
    """Largest sum of file sizes of one skill folder."""
    max_folder_files: int = 4_000
    max_path_bytes: int = 1_024
    max_tree_entries: int = 2_000_000
    """Most entries read from one repository's tree before it is refused."""
    max_pack_bytes: int = 2_048 * MIB
    fetch_timeout_seconds: int = 600
    max_objects: int = 5_000_000
    """Most objects of one fetched repository."""
    max_depth: int = 64
    """Most folders above one file."""
    max_folder_revisions: int = 100
    """Most folder revisions kept of one version, newest first."""
    max_manifest_lines: int = 2_000_000
    """Most manifest lines that one run writes for one repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One value that every use case receives."""

    data: Path
    """Folder that holds blobs, index and fetched repositories."""
    registry: str | None = None
    """URL or ``file:///DIR`` of a registry; ``None`` means the local data folder."""
    limits: Limits = Limits()
    read_only: bool = False
    """Write nothing into ``data``: it is another's registry, perhaps on a read-only disk."""
    index_on_demand: bool = True
    """Index a repository from its host when a reference names one that is not held."""
    allow_private: bool = False
    """Let http(s), ssh and git sources resolve to private addresses."""
    github_api: str = "https://api.github.com"
    github_token: str | None = field(default=None, repr=False)
    github_silent_until: int | None = None
    """Unix time before which GitHub's API is not asked, because it said so about another repository."""
    workers: int = 0
    """Processes that read and audit; 0 means one per core."""
    database: str | None = field(default=None, repr=False)
    """``postgresql://...`` of the index; ``None`` means ``index.sqlite`` in ``data``."""
    blobs: str | None = field(default=None, repr=False)
    """``s3://bucket/prefix?endpoint_url=...&region=...``; ``None`` means the folder ``data``."""
    pool: Pool = Pool()
