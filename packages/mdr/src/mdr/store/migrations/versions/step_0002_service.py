"""The service: withdrawals, tokens, the audit trail, badge views, disputes, claims, and words to search by.

Only adds. A program of step 0001 reads and writes these databases as before; what it writes has no
mentions and no words until the next indexing by a newer one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NEEDS = "0001"
"""The oldest step whose programs work with what this one leaves behind."""
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NUMBER = sa.Integer().with_variant(sa.BigInteger, "postgresql")


def upgrade() -> None:
    """Create what the service keeps."""
    op.add_column("artifacts", sa.Column("mentions_of", TEXT))
    _state()
    _search()
    _withdrawals()
    _trail()
    _readers()


def _state() -> None:
    table = op.create_table(
        "registry_state",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("changes", sa.BigInteger, nullable=False),
        sa.Column("needs", TEXT, nullable=False),
    )
    op.bulk_insert(table, [{"id": 1, "changes": 1, "needs": NEEDS}])


def _search() -> None:
    op.create_table(
        "mentions",
        sa.Column("artifact_id", TEXT, primary_key=True),
        sa.Column("what", TEXT, primary_key=True),
        sa.Column("value", TEXT, primary_key=True),
    )
    op.create_index("ix_mentions_what_value", "mentions", ["what", "value"])
    table = op.create_table(
        "words",
        sa.Column("term", TEXT, primary_key=True),
        sa.Column("backward", TEXT, nullable=False),
    )
    op.create_index("ix_words_backward", "words", ["backward"])
    if op.get_bind().dialect.name == "sqlite":
        terms = op.get_bind().execute(sa.text("SELECT term FROM search_words")).scalars()
        op.bulk_insert(table, [{"term": term, "backward": term[::-1]} for term in terms])
    else:
        op.execute(
            'CREATE TABLE search_documents (artifact_id text COLLATE "C" PRIMARY KEY, '
            "content tsvector NOT NULL)"
        )
        op.execute(
            "CREATE INDEX ix_search_documents_content ON search_documents USING gin (content)"
        )


def _withdrawals() -> None:
    op.create_table(
        "withdrawals",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("artifact_id", TEXT),
        sa.Column("label", TEXT),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("advisory", TEXT),
        sa.Column("at", TEXT, nullable=False),
        sa.Column("by", TEXT, nullable=False),
        sa.Column("lifted_at", TEXT),
    )
    op.create_index("ix_withdrawals_sha256", "withdrawals", ["sha256"])
    op.create_index("ix_withdrawals_artifact_id", "withdrawals", ["artifact_id"])


def _trail() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("secret_sha256", TEXT, nullable=False),
        sa.Column("scopes", TEXT, nullable=False),
        sa.Column("created", TEXT, nullable=False),
        sa.Column("expires", TEXT),
        sa.Column("revoked", TEXT),
        sa.Column("last_used", TEXT),
        sa.UniqueConstraint("secret_sha256", name="uq_tokens_secret_sha256"),
    )
    op.create_table(
        "events",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("at", TEXT, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("details", TEXT, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER events_keep_{verb.lower()} BEFORE {verb} ON events "
                "BEGIN SELECT RAISE(ABORT, 'events are only added'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION events_keep() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'events are only added'; END$$"
    )
    op.execute(
        "CREATE TRIGGER events_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION events_keep()"
    )


def _readers() -> None:
    op.create_table(
        "badge_views",
        sa.Column("artifact_id", TEXT, primary_key=True),
        sa.Column("day", TEXT, primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_badge_views_day", "badge_views", ["day"])
    op.create_table(
        "disputes",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("artifact_id", TEXT, nullable=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("check", TEXT, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.Column("contact", TEXT),
        sa.Column("at", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
    )
    op.create_index("ix_disputes_artifact_id", "disputes", ["artifact_id"])
    op.create_table(
        "claims",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("repository", TEXT, nullable=False),
        sa.Column("claimant", TEXT, nullable=False),
        sa.Column("proof", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("at", TEXT, nullable=False),
    )
