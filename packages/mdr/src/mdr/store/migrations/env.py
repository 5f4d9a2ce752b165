"""Alembic's entry point: runs on the connection that :mod:`mdr.store.engine` hands over."""

from __future__ import annotations

from alembic import context

from mdr.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
