"""``energyopt keys``: who may use the service."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from energyopt.compose.keys import create_key, list_keys, revoke_key
from energyopt.core.jobs import Scope

from .output import message_console, print_json, result_console

Db = Annotated[
    str | None, typer.Option("--db", envvar="ENERGYOPT_DB", help="Database: a path or URL. Default: the user's own.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def create(
    name: Annotated[str, typer.Argument(help="By which people know the key.")],
    scope: Annotated[list[Scope], typer.Option("--scope", help="What it may do; repeat for several.")],
    tenant: Annotated[str | None, typer.Option(help="Whose it is: it sees the studies of this tenant only.")] = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Make a key. It is shown now and never again."""
    key, secret = create_key(db, name, scope, tenant)
    if as_json:
        print_json({"key": key.model_dump(mode="json"), "secret": secret})
        return
    result_console().print(secret, markup=False, soft_wrap=True)
    message = f"Key {key.id} ({', '.join(key.scopes)}). Keep it now: it is not shown again. "
    message_console().print(f"{message}Take it back with: energyopt keys revoke {key.id}", markup=False, soft_wrap=True)


def list_all(db: Db = None, as_json: Json = False) -> None:
    """Every key, without its secret."""
    keys = list_keys(db)
    if as_json:
        print_json([key.model_dump(mode="json") for key in keys])
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "name", "scopes", "tenant", "created (UTC)", "state"):
        table.add_column(column)
    for key in keys:
        state = "active" if key.revoked is None else f"revoked {key.revoked:%Y-%m-%d %H:%M}"
        scopes = ", ".join(key.scopes)
        table.add_row(
            key.id, escape(key.name), scopes, escape(key.tenant or "—"), f"{key.created:%Y-%m-%d %H:%M}", state
        )
    result_console().print(table if keys else "No keys. Make one: energyopt keys create NAME --scope read")


def revoke(key: Annotated[str, typer.Argument(help="Its id.")], db: Db = None, as_json: Json = False) -> None:
    """Take a key back, at once."""
    revoked = revoke_key(db, key)
    if as_json:
        print_json(revoked.model_dump(mode="json"))
        return
    result_console().print(f"Key {revoked.id} ({revoked.name}) is revoked.", markup=False)
