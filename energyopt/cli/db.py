"""``energyopt db ...``: bring a database to this version before anything else does, and keep a copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from energyopt.compose.keys import backup_database, upgrade_database

from .keys import Db, Json
from .output import message_console, print_json, result_console


def upgrade(db: Db = None, as_json: Json = False) -> None:
    """Make or migrate the tables, in one transaction. A database of a newer energyopt is left alone."""
    name = upgrade_database(db)
    if as_json:
        print_json({"database": name, "upgraded": True})
        return
    result_console().print(f"{name} is at this version.", markup=False, soft_wrap=True)


def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the copy.")],
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Copy a database file while others go on writing to it: all that was committed at one moment, checked."""
    with Progress(console=message_console(), transient=True) as bar:
        task = bar.add_task("copying", total=None)
        made = backup_database(db, target, lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        print_json({"backup": str(made), "bytes": made.stat().st_size})
        return
    result_console().print(f"{made} is a copy of the database: --db {made} uses it.", markup=False, soft_wrap=True)
