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
    Column("host", Text, nullable=False),
    Column("repository", Text, nullable=False),
    Column("repository_key", Text, nullable=False),
    Column("location", Text, nullable=False),
    Column("head", Text),
    Column("branch", Text),
    Column("stars", Integer),
    Column("license", Text),
    Column("pushed", Text),
    Column("etag", Text),
    Column("retry_after", BigInteger),
    Column("commits", Integer, nullable=False, default=0),
    UniqueConstraint("host", "repository_key"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False),
    Column("source_id", ForeignKey("sources.id"), nullable=False),
    Column("path", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("name_key", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("description", Text),
    Column("latest", Text),
    Column("latest_sha256", Text),
    Column("present", Boolean, nullable=False),
    Column("previously", Text, nullable=False, default="[]"),
    UniqueConstraint("id"),
    UniqueConstraint("source_id", "path"),
    Index(None, "source_id", "name_key"),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("artifact_id", ForeignKey("artifacts.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("on_line", Boolean, nullable=False),
    Column("label", Text, nullable=False),
    Column("commit_oid", Text, nullable=False),
    Column("committed", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("manifest_sha256", Text, nullable=False),
    Column("omitted", Text, nullable=False, default="[]"),
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
    Column("commit_oid", Text, nullable=False),
    Column("committed", Text, nullable=False),
    Column("manifest_sha256", Text, nullable=False),
    UniqueConstraint("version_id", "commit_oid"),
)

manifests = Table(
    "manifests",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("body", Text, nullable=False),
)

grades = Table(
    "grades",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("ruleset", Text, primary_key=True),
    Column("grade", Text, nullable=False),
    Column("penalty", Integer),
)

objects = Table(
    "objects",
    metadata,
    Column("source_id", ForeignKey("sources.id"), primary_key=True),
    Column("oid", Text, primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
)

skips = Table(
    "skips",
    metadata,
    Column("source_id", ForeignKey("sources.id"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("reason", Text, nullable=False),
)
