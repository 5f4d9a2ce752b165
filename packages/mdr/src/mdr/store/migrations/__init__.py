"""Schema steps, run by Alembic in order. A step that was released is never edited."""
