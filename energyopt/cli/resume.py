"""``energyopt studies resume``: go on with what an interrupt or a kill left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energyopt.compose.results import open_session

from .run import run_and_print
from .studies import Db, Json, StudyId


def resume(
    study: StudyId = "latest",
    db: Db = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    as_json: Json = False,
) -> None:
    """Go on with a study that was interrupted or killed; finished trials stay."""
    session = open_session(db, out)
    run_and_print(session, session.store.study(study).id, as_json=as_json)
