"""``energyopt db upgrade``: bring a database to this version before anything else does."""

from __future__ import annotations

from energyopt.compose.keys import upgrade_database

from .keys import Db, Json
from .output import print_json, result_console


def upgrade(db: Db = None, as_json: Json = False) -> None:
    """Make or migrate the tables, in one transaction. A database of a newer energyopt is left alone."""
    name = upgrade_database(db)
    if as_json:
        print_json({"database": name, "upgraded": True})
        return
    result_console().print(f"{name} is at this version.", markup=False, soft_wrap=True)
