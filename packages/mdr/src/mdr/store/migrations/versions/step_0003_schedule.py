"""The crawl schedule, and on PostgreSQL the queue that workers on several machines share.

Only adds. The queue's tables are Procrastinate's own, of the version that is installed when this step runs;
a later version that changes them comes with a step of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.Integer().with_variant(sa.BigInteger, "postgresql")


def upgrade() -> None:
    """Create the schedule."""
    op.create_table(
        "crawls",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("name_as", TEXT),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("repository_key", TEXT, nullable=False),
        sa.Column("server", TEXT, nullable=False),
        sa.Column("trusted", sa.Boolean, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("due", sa.BigInteger, nullable=False),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("run", TEXT),
        sa.Column("start_at", sa.Float),
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.Column("changed", sa.BigInteger),
        sa.Column("code", TEXT),
        sa.Column("message", TEXT),
        sa.Column("requested_by", TEXT, nullable=False),
        sa.UniqueConstraint("host", "repository_key", name="uq_crawls_host_repository_key"),
    )
    op.create_index("ix_crawls_state_priority_due", "crawls", ["state", "priority", "due"])
    op.create_index("ix_crawls_server_state", "crawls", ["server", "state"])
    op.create_table(
        "crawl_hosts",
        sa.Column("server", TEXT, primary_key=True),
        sa.Column("next_start", sa.Float, nullable=False),
        sa.Column("paused_until", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "crawl_counts",
        sa.Column("outcome", TEXT, primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        _queue()


def _queue() -> None:
    """Run Procrastinate's own schema, as it is: several statements, and no parameters in them."""
    from procrastinate.schema import SchemaManager

    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    with connection.cursor() as cursor:
        cursor.execute(SchemaManager.get_schema())
