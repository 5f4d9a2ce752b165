"""The first schema: sources, artifacts, versions, manifests, grades, and full-text search on SQLite."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Ordered by its bytes on every database."""


def upgrade() -> None:
    """Create every table."""
    _sources()
    _artifacts()
    _versions()
    _contents()
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE search USING fts5(artifact_id UNINDEXED, name, description, "
            "repository, body, tokenize = 'unicode61 remove_diacritics 2')"
        )
        op.execute("CREATE VIRTUAL TABLE search_words USING fts5vocab(search, 'row')")


def _sources() -> None:
    op.create_table(
        "sources",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("repository", TEXT, nullable=False),
        sa.Column("repository_key", TEXT, nullable=False),
        sa.Column("location", TEXT, nullable=False),
        sa.Column("head", TEXT),
        sa.Column("branch", TEXT),
        sa.Column("stars", sa.Integer),
        sa.Column("license", TEXT),
        sa.Column("pushed", TEXT),
        sa.Column("etag", TEXT),
        sa.Column("retry_after", sa.BigInteger),
        sa.Column("commits", sa.Integer, nullable=False),
        sa.UniqueConstraint("host", "repository_key", name="uq_sources_host_repository_key"),
    )


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("source_id", sa.Integer, sa.ForeignKey("sources.id"), nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("name_key", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("description", TEXT),
        sa.Column("latest", TEXT),
        sa.Column("latest_sha256", TEXT),
        sa.Column("present", sa.Boolean, nullable=False),
        sa.Column("previously", TEXT, nullable=False),
        sa.UniqueConstraint("id", name="uq_artifacts_id"),
        sa.UniqueConstraint("source_id", "path", name="uq_artifacts_source_id_path"),
    )
    op.create_index("ix_artifacts_source_id_name_key", "artifacts", ["source_id", "name_key"])


def _versions() -> None:
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("artifact_id", TEXT, sa.ForeignKey("artifacts.id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("on_line", sa.Boolean, nullable=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("commit_oid", TEXT, nullable=False),
        sa.Column("committed", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("manifest_sha256", TEXT, nullable=False),
        sa.Column("omitted", TEXT, nullable=False),
        sa.UniqueConstraint("artifact_id", "label", name="uq_versions_artifact_id_label"),
        sa.UniqueConstraint("artifact_id", "commit_oid", name="uq_versions_artifact_id_commit_oid"),
    )
    op.create_index("ix_versions_sha256", "versions", ["sha256"])
    op.create_table(
        "folder_revisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("version_id", sa.Integer, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("commit_oid", TEXT, nullable=False),
        sa.Column("committed", TEXT, nullable=False),
        sa.Column("manifest_sha256", TEXT, nullable=False),
        sa.UniqueConstraint(
            "version_id", "commit_oid", name="uq_folder_revisions_version_id_commit_oid"
        ),
    )


def _contents() -> None:
    op.create_table(
        "manifests",
        sa.Column("sha256", TEXT, primary_key=True),
        sa.Column("body", TEXT, nullable=False),
    )
    op.create_table(
        "grades",
        sa.Column("sha256", TEXT, primary_key=True),
        sa.Column("kind", TEXT, primary_key=True),
        sa.Column("ruleset", TEXT, primary_key=True),
        sa.Column("grade", TEXT, nullable=False),
        sa.Column("penalty", sa.Integer),
    )
    op.create_table(
        "objects",
        sa.Column("source_id", sa.Integer, sa.ForeignKey("sources.id"), primary_key=True),
        sa.Column("oid", TEXT, primary_key=True),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "skips",
        sa.Column("source_id", sa.Integer, sa.ForeignKey("sources.id"), primary_key=True),
        sa.Column("path", TEXT, primary_key=True),
        sa.Column("reason", TEXT, nullable=False),
    )
