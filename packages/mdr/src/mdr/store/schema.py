"""The tables of the index, in SQL that SQLite and PostgreSQL both have.

Nothing here is ever rewritten except what describes the present (a source's head and its host's words,
an artifact's description, positions): a version's label, commit and hashes are inserted once. Manifests
are content-addressed like blobs: their text hashes to their key.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

Words = Text().with_variant(Text(collation="C"), "postgresql")
"""Text that is ordered by its bytes on every database."""
Number = Integer().with_variant(BigInteger, "postgresql")
"""A key that counts up."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sources = Table(
    "sources",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("host", Words, nullable=False),
    Column("repository", Words, nullable=False),
    Column("repository_key", Words, nullable=False),
    Column("location", Words, nullable=False),
    Column("head", Words),
    Column("branch", Words),
    Column("stars", Integer),
    Column("license", Words),
    Column("pushed", Words),
    Column("etag", Words),
    Column("retry_after", BigInteger),
    Column("commits", Integer, nullable=False, default=0),
    UniqueConstraint("host", "repository_key"),
    Index(None, "repository_key"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", Words, nullable=False),
    Column("source_id", ForeignKey("sources.id"), nullable=False),
    Column("path", Words, nullable=False),
    Column("name", Words, nullable=False),
    Column("name_key", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("description", Words),
    Column("latest", Words),
    Column("latest_sha256", Words),
    Column("present", Boolean, nullable=False),
    Column("previously", Words, nullable=False, default="[]"),
    Column("mentions_of", Words),
    Column("grade", Words),
    Column("graded_by", Words),
    UniqueConstraint("id"),
    UniqueConstraint("source_id", "path"),
    Index(None, "source_id", "name_key"),
    Index(None, "latest_sha256"),
    Index(None, "graded_by"),
)
"""``grade``: of the offered version by the newest ruleset that graded it, ``graded_by``; the database keeps both."""

versions = Table(
    "versions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("artifact_id", ForeignKey("artifacts.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("on_line", Boolean, nullable=False),
    Column("label", Words, nullable=False),
    Column("commit_oid", Words, nullable=False),
    Column("committed", Words, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Words, nullable=False),
    Column("manifest_sha256", Words, nullable=False),
    Column("omitted", Words, nullable=False, default="[]"),
    UniqueConstraint("artifact_id", "label"),
    UniqueConstraint("artifact_id", "commit_oid"),
    Index(None, "sha256"),
)

folder_revisions = Table(
    "folder_revisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version_id", ForeignKey("versions.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("commit_oid", Words, nullable=False),
    Column("committed", Words, nullable=False),
    Column("manifest_sha256", Words, nullable=False),
    UniqueConstraint("version_id", "commit_oid"),
)

manifests = Table(
    "manifests",
    metadata,
    Column("sha256", Words, primary_key=True),
    Column("body", Words, nullable=False),
)

grades = Table(
    "grades",
    metadata,
    Column("sha256", Words, primary_key=True),
    Column("kind", Words, primary_key=True),
    Column("ruleset", Words, primary_key=True),
    Column("grade", Words, nullable=False),
    Column("penalty", Integer),
)

objects = Table(
    "objects",
    metadata,
    Column("source_id", ForeignKey("sources.id"), primary_key=True),
    Column("oid", Words, primary_key=True),
    Column("sha256", Words, nullable=False),
    Column("size", BigInteger, nullable=False),
)

skips = Table(
    "skips",
    metadata,
    Column("source_id", ForeignKey("sources.id"), primary_key=True),
    Column("path", Words, primary_key=True),
    Column("reason", Words, nullable=False),
)

mentions = Table(
    "mentions",
    metadata,
    Column("artifact_id", Words, primary_key=True),
    Column("what", Words, primary_key=True),
    Column("value", Words, primary_key=True),
    Column("number", Integer),
    Index(None, "what", "value"),
    Index(None, "what", "value", "number"),
    Index(None, "number", "what", "value"),
)
"""Hosts and tools that the latest version of an artifact names; ``what`` is ``host`` or ``tool``. The database
fills in ``number``, the artifact's."""

words = Table(
    "words",
    metadata,
    Column("term", Words, primary_key=True),
    Column("backward", Words, nullable=False),
    Index(None, "backward"),
)
"""Every word that a searched text had, also spelled backward: the nearest spellings are found by it."""

withdrawals = Table(
    "withdrawals",
    metadata,
    Column("id", Number, primary_key=True),
    Column("artifact_id", Words),
    Column("label", Words),
    Column("sha256", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("advisory", Words),
    Column("at", Words, nullable=False),
    Column("by", Words, nullable=False),
    Column("lifted_at", Words),
    Index(None, "sha256"),
    Index(None, "artifact_id"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Words, primary_key=True),
    Column("name", Words, nullable=False),
    Column("secret_sha256", Words, nullable=False),
    Column("scopes", Words, nullable=False),
    Column("created", Words, nullable=False),
    Column("expires", Words),
    Column("revoked", Words),
    Column("last_used", Words),
    UniqueConstraint("secret_sha256"),
)

events = Table(
    "events",
    metadata,
    Column("id", Number, primary_key=True),
    Column("at", Words, nullable=False),
    Column("actor", Words, nullable=False),
    Column("action", Words, nullable=False),
    Column("subject", Words, nullable=False),
    Column("details", Words, nullable=False),
)
"""The audit trail: rows are added and never changed; the databases refuse anything else."""

badge_views = Table(
    "badge_views",
    metadata,
    Column("artifact_id", Words, primary_key=True),
    Column("day", Words, primary_key=True),
    Column("count", BigInteger, nullable=False),
    Index(None, "day"),
)

disputes = Table(
    "disputes",
    metadata,
    Column("id", Number, primary_key=True),
    Column("artifact_id", Words, nullable=False),
    Column("label", Words, nullable=False),
    Column("sha256", Words, nullable=False),
    Column("check", Words, nullable=False),
    Column("text", Words, nullable=False),
    Column("contact", Words),
    Column("at", Words, nullable=False),
    Column("state", Words, nullable=False),
    Index(None, "artifact_id"),
)

claims = Table(
    "claims",
    metadata,
    Column("id", Number, primary_key=True),
    Column("host", Words, nullable=False),
    Column("repository", Words, nullable=False),
    Column("claimant", Words, nullable=False),
    Column("proof", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("at", Words, nullable=False),
)

registry_state = Table(
    "registry_state",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("changes", BigInteger, nullable=False),
    Column("needs", Words, nullable=False),
)
"""One row: a number that grows with everything readers can see, and the oldest schema step whose
programs work with these tables."""
