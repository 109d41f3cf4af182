"""``energyopt studies export``: the winner for vLLM, SGLang, compose, systemd, Kubernetes, Dynamo or llm-d."""

from __future__ import annotations

from typing import Annotated

import typer

from energyopt.compose.export import export_winner
from energyopt.compose.results import open_session
from tuner.export.forms import FORMS

from .output import print_json
from .studies import Db, Json, StudyId


def export(
    study: StudyId = "latest",
    form: Annotated[str, typer.Option("--format", metavar="FORM", help=f"One of {', '.join(FORMS)}.")] = "energyopt",
    hardware: Annotated[str | None, typer.Option(help="The GPU it is for: memory is checked against it.")] = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Print the recommended configuration as a command, a unit or a manifest."""
    session = open_session(db, None)
    text = export_winner(session, session.store.study(study).id, form, hardware)
    if as_json:
        print_json({"format": form, "text": text})
        return
    typer.echo(text, nl=False)
