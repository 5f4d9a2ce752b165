"""Quick search: what facets count stands in the rows that are counted, and beginnings of words have an index.

Adds, and makes SQLite's index of words anew with the same columns, so that a program of an earlier step reads
and writes on: the databases themselves keep what it does not know of.

* ``artifacts.grade`` and ``graded_by``: what the newest ruleset says of the offered version;
* ``mentions.number``: the artifact's number, quicker to compare than its id;
* SQLite: an index of beginnings of one to three letters;
* PostgreSQL: ``search_documents.number`` as above, ``head``, the words of name, description and repository
  alone, which rank without the text being unpacked, and a function that never reads all texts in order: the planner believes
  that to be cheap, since it does not know that each must be unpacked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NEWEST = "ORDER BY length(g.ruleset) DESC, g.ruleset DESC LIMIT 1"
"""``r9`` is older than ``r10``."""


def upgrade() -> None:
    """Add columns, fill them, and let the database keep them."""
    op.add_column("artifacts", sa.Column("grade", TEXT))
    op.add_column("artifacts", sa.Column("graded_by", TEXT))
    op.create_index("ix_sources_repository_key", "sources", ["repository_key"])
    op.create_index("ix_artifacts_graded_by", "artifacts", ["graded_by"])
    op.create_index("ix_artifacts_latest_sha256", "artifacts", ["latest_sha256"])
    op.add_column("mentions", sa.Column("number", sa.Integer))
    op.execute("UPDATE mentions SET number = (SELECT a.number FROM artifacts a WHERE a.id = artifact_id)")  # fmt: skip
    op.create_index("ix_mentions_what_value_number", "mentions", ["what", "value", "number"])
    op.create_index("ix_mentions_number_what_value", "mentions", ["number", "what", "value"])
    if op.get_bind().dialect.name == "sqlite":
        _sqlite()
    else:
        _postgresql()


def _sqlite() -> None:
    op.execute(
        "UPDATE artifacts SET (grade, graded_by) = (SELECT g.grade, g.ruleset FROM grades g "  # noqa: S608 - fixed words
        f"WHERE g.sha256 = latest_sha256 AND g.kind = artifacts.kind {NEWEST})"
    )
    for name, when in (
        ("new", "INSERT ON artifacts"),
        ("moved", "UPDATE OF latest_sha256, kind ON artifacts"),
    ):
        op.execute(
            f"CREATE TRIGGER artifacts_graded_{name} AFTER {when} BEGIN "  # noqa: S608 - fixed words
            "UPDATE artifacts SET (grade, graded_by) = (SELECT g.grade, g.ruleset FROM grades g "
            f"WHERE g.sha256 = NEW.latest_sha256 AND g.kind = NEW.kind {NEWEST}) "
            "WHERE number = NEW.number; END"
        )
    op.execute(
        "CREATE TRIGGER grades_kept AFTER INSERT ON grades BEGIN "
        "UPDATE artifacts SET grade = NEW.grade, graded_by = NEW.ruleset "
        "WHERE latest_sha256 = NEW.sha256 AND kind = NEW.kind AND (graded_by IS NULL "
        "OR (length(graded_by), graded_by) < (length(NEW.ruleset), NEW.ruleset)); END"
    )
    op.execute(
        "CREATE TRIGGER mentions_numbered AFTER INSERT ON mentions WHEN NEW.number IS NULL BEGIN "
        "UPDATE mentions SET number = (SELECT a.number FROM artifacts a WHERE a.id = NEW.artifact_id) "
        "WHERE rowid = NEW.rowid; END"
    )
    _words()


def _words() -> None:
    """Make the index of words anew: what it was made with cannot be changed."""
    columns = "artifact_id, name, description, repository, body"
    op.execute("CREATE TEMP TABLE held AS SELECT rowid AS number, * FROM search")
    op.execute("DROP TABLE search_words")
    op.execute("DROP TABLE search")
    op.execute(
        "CREATE VIRTUAL TABLE search USING fts5(artifact_id UNINDEXED, name, description, "
        "repository, body, tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3')"
    )
    op.execute("CREATE VIRTUAL TABLE search_words USING fts5vocab(search, 'row')")
    op.execute(f"INSERT INTO search (rowid, {columns}) SELECT number, {columns} FROM held")  # noqa: S608 - fixed words
    op.execute("DROP TABLE held")


def _postgresql() -> None:
    op.execute(
        "UPDATE artifacts a SET grade = n.grade, graded_by = n.ruleset FROM (SELECT DISTINCT ON "
        "(g.sha256, g.kind) g.sha256, g.kind, g.grade, g.ruleset FROM grades g "
        "ORDER BY g.sha256, g.kind, length(g.ruleset) DESC, g.ruleset DESC) n "
        "WHERE n.sha256 = a.latest_sha256 AND n.kind = a.kind"
    )
    op.execute(
        "CREATE FUNCTION artifacts_graded() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "  # noqa: S608 - fixed words
        "SELECT g.grade, g.ruleset INTO NEW.grade, NEW.graded_by FROM grades g "
        f"WHERE g.sha256 = NEW.latest_sha256 AND g.kind = NEW.kind {NEWEST}; "
        "RETURN NEW; END$$"
    )
    op.execute(
        "CREATE TRIGGER artifacts_graded BEFORE INSERT OR UPDATE OF latest_sha256, kind ON artifacts "
        "FOR EACH ROW EXECUTE FUNCTION artifacts_graded()"
    )
    # A row that another transaction holds is passed over: waiting for it could go round in a circle, and
    # search reads `grades` itself where `graded_by` is not the ruleset that it asks for.
    op.execute(
        "CREATE FUNCTION grades_kept() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
        "UPDATE artifacts SET grade = NEW.grade, graded_by = NEW.ruleset WHERE number IN ("
        "SELECT number FROM artifacts WHERE latest_sha256 = NEW.sha256 AND kind = NEW.kind "
        "AND (graded_by IS NULL OR (length(graded_by), graded_by) < (length(NEW.ruleset), NEW.ruleset)) "
        "FOR UPDATE SKIP LOCKED); RETURN NULL; END$$"
    )
    op.execute(
        "CREATE TRIGGER grades_kept AFTER INSERT ON grades "
        "FOR EACH ROW EXECUTE FUNCTION grades_kept()"
    )
    op.execute(
        "ALTER TABLE search_documents ADD COLUMN number integer, ADD COLUMN head tsvector "
        "GENERATED ALWAYS AS (ts_filter(content, '{a,b,c}')) STORED"
    )
    op.execute(
        "UPDATE search_documents SET number = a.number FROM artifacts a WHERE a.id = artifact_id"
    )
    for table in ("mentions", "search_documents"):
        op.execute(
            f"CREATE FUNCTION {table}_numbered() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "  # noqa: S608 - fixed words
            "SELECT a.number INTO NEW.number FROM artifacts a WHERE a.id = NEW.artifact_id; "
            "RETURN NEW; END$$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_numbered BEFORE INSERT ON {table} FOR EACH ROW "
            f"WHEN (NEW.number IS NULL) EXECUTE FUNCTION {table}_numbered()"
        )
    _found()


def _found() -> None:
    """Make the function that finds by the index alone, and scores by ``head`` when so told."""
    op.execute(
        "CREATE FUNCTION search_found(fits tsquery, ranks tsquery, weights real[], scored boolean) "
        "RETURNS TABLE (number integer, score double precision) "
        "LANGUAGE sql STABLE ROWS 1000 SET enable_seqscan = off AS $$"
        "SELECT d.number, CASE WHEN scored THEN ts_rank(weights, d.head, ranks) ELSE 0 END"
        "::double precision FROM search_documents d WHERE d.content @@ fits$$"
    )
