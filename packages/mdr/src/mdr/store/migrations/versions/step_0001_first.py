"""The first schema: sources, artifacts, versions, manifests, grades, and full-text search on SQLite."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


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
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("repository", sa.Text, nullable=False),
        sa.Column("repository_key", sa.Text, nullable=False),
        sa.Column("location", sa.Text, nullable=False),
        sa.Column("head", sa.Text),
        sa.Column("branch", sa.Text),
        sa.Column("stars", sa.Integer),
        sa.Column("license", sa.Text),
        sa.Column("pushed", sa.Text),
        sa.Column("etag", sa.Text),
        sa.Column("retry_after", sa.BigInteger),
        sa.Column("commits", sa.Integer, nullable=False),
        sa.UniqueConstraint("host", "repository_key", name="uq_sources_host_repository_key"),
    )


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("source_id", sa.Integer, sa.ForeignKey("sources.id"), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("name_key", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("latest", sa.Text),
        sa.Column("latest_sha256", sa.Text),
        sa.Column("present", sa.Boolean, nullable=False),
        sa.Column("previously", sa.Text, nullable=False),
        sa.UniqueConstraint("id", name="uq_artifacts_id"),
        sa.UniqueConstraint("source_id", "path", name="uq_artifacts_source_id_path"),
    )
    op.create_index("ix_artifacts_source_id_name_key", "artifacts", ["source_id", "name_key"])


def _versions() -> None:
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("artifact_id", sa.Text, sa.ForeignKey("artifacts.id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("on_line", sa.Boolean, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("commit_oid", sa.Text, nullable=False),
        sa.Column("committed", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("manifest_sha256", sa.Text, nullable=False),
        sa.Column("omitted", sa.Text, nullable=False),
        sa.UniqueConstraint("artifact_id", "label", name="uq_versions_artifact_id_label"),
        sa.UniqueConstraint("artifact_id", "commit_oid", name="uq_versions_artifact_id_commit_oid"),
    )
    op.create_index("ix_versions_sha256", "versions", ["sha256"])
    op.create_table(
        "folder_revisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("version_id", sa.Integer, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("commit_oid", sa.Text, nullable=False),
        sa.Column("committed", sa.Text, nullable=False),
        sa.Column("manifest_sha256", sa.Text, nullable=False),
        sa.UniqueConstraint(
            "version_id", "commit_oid", name="uq_folder_revisions_version_id_commit_oid"
        ),
    )


def _contents() -> None:
    op.create_table(
        "manifests",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "grades",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("ruleset", sa.Text, primary_key=True),
        sa.Column("grade", sa.Text, nullable=False),
        sa.Column("penalty", sa.Integer),
    )
    op.create_table(
        "objects",
        sa.Column("source_id", sa.Integer, sa.ForeignKey("sources.id"), primary_key=True),
        sa.Column("oid", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "skips",
        sa.Column("source_id", sa.Integer, sa.ForeignKey("sources.id"), primary_key=True),
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
    )
