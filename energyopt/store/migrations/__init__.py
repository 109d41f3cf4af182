"""Moves a database to the schema of this version, and says when it cannot.

The scripts lie beside this file, so they work from a wheel; there is no ``alembic.ini``. A developer makes a new
revision with ``alembic.command.revision(configuration(connection), autogenerate=True, message=...)``.
"""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import energyopt.store.lease_tables
import energyopt.store.service_tables  # noqa: F401 (its tables belong to the schema)
from energyopt.core.errors import StoreError
from energyopt.store.tables import VERSION_TABLE

_HERE = Path(__file__).resolve().parent
_ALEMBIC = threading.Lock()  # Alembic hands its scripts their context through a global of its own


def configuration(connection: Connection) -> Config:
    """Alembic's configuration for work on ``connection``, inside whatever transaction it is in."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))  # Alembic expands %(name)s
    config.set_main_option("path_separator", "os")
    return config


def migrate(connection: Connection, name: str) -> None:
    """Bring the database ``name`` to the newest revision, within the open transaction of ``connection``.

    The caller holds a lock that keeps other processes out. Raises StoreError, and has changed nothing, if the
    database is of a revision that this version does not know.
    """
    config = configuration(connection)
    script = ScriptDirectory.from_config(config)
    known = {revision.revision for revision in script.walk_revisions()}
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
    unknown = sorted(set(found) - known)
    if unknown:
        raise StoreError(
            f"The database {name} is of revision {unknown[0]!r}, and this version of energyopt knows none after "
            f"{script.get_current_head()!r}: use the newer energyopt that wrote it, or another database."
        )
    if set(found) == set(script.get_heads()):
        return
    with _ALEMBIC:
        command.upgrade(config, "head")
