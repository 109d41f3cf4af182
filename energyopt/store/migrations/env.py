"""Alembic's entry: it runs this file, by path, for every command. Nothing else imports it."""

from __future__ import annotations

from alembic import context
from alembic.runtime.environment import NameFilterParentNames, NameFilterType
from sqlalchemy import Connection

from energyopt.store.tables import PREFIX, VERSION_TABLE, Base


def ours(name: str | None, kind: NameFilterType, parents: NameFilterParentNames) -> bool:
    """Only our tables: without this, autogenerate would drop those of the programs we share the database with."""
    return kind != "table" or (name is not None and name.startswith(PREFIX))


connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=ours,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
