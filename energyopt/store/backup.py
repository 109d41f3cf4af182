"""Copies of a database file while others write to it, as SQLite's online backup makes them.

PostgreSQL has its own means (``pg_dump``, ``pg_restore``), which this does not wrap.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from energyopt.core.errors import ConfigError, StoreError

from .database import parse_url

PAGES = 1024
"""Copied at a time; between two such steps writers go on."""

Progress = Callable[[int, int], None]
"""Pages copied, pages in all."""


def backup_file(url: str, target: Path, on_progress: Progress = lambda done, total: None) -> Path:
    """Copy the database ``url`` to the new file ``target``: all that was committed at one moment, checked.

    A crash leaves no half ``target``. Raises ConfigError for a database that is no file or a target that exists,
    StoreError if either cannot be read or written.
    """
    address = parse_url(url)
    if address.get_backend_name() != "sqlite" or address.database is None:
        raise ConfigError("Only a database file is copied; PostgreSQL's own means are pg_dump and pg_restore.")
    if not os.path.isfile(address.database):
        raise StoreError(f"There is no database {address.database}.")
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists: a backup goes to a new file.")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _copy(address.database, partial, on_progress)
        os.link(partial, target)  # unlike a rename this never replaces a file that has come in the meantime
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{address.database} cannot be copied to {target}: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _copy(source: str, partial: Path, on_progress: Progress) -> None:
    read_only = f"{Path(source).absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(read_only, uri=True)) as origin, closing(sqlite3.connect(partial)) as copy:
        origin.execute("BEGIN")
        origin.execute(
            "SELECT count(*) FROM sqlite_schema"
        ).fetchone()  # fixes the moment: writers cannot make it begin anew
        origin.backup(copy, pages=PAGES, progress=lambda _, left, total: on_progress(total - left, total))
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if found is None or found[0] != "ok":
            raise StoreError(f"The copy of {source} is damaged ({found}); the database itself may be.")
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    with partial.open("rb") as file:
        os.fsync(file.fileno())
