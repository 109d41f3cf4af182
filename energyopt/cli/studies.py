"""``energyopt studies``: list, show and resume what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from energyopt.compose.study import objective_unit, open_session, run_study, study_summary
from energyopt.core.errors import NoFeasibleError

from .output import message_console, print_json, result_console
from .progress import StudyBar
from .tables import trials_table
from .verdict import print_outcome, summary_json

app = typer.Typer(help="Studies in the database.", no_args_is_help=True, rich_markup_mode="rich")

Db = Annotated[str | None, typer.Option("--db", help="Database: a path or URL. Default: the user's own.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StudyId = Annotated[str, typer.Argument(help="Id, the unique beginning of one, or `latest`.")]


@app.command("list")
def list_studies(db: Db = None, limit: Annotated[int, typer.Option(min=1)] = 20, as_json: Json = False) -> None:
    """The newest studies."""
    session = open_session(db, None)
    studies = session.store.studies(limit=limit)
    if as_json:
        print_json([study.model_dump(mode="json", exclude={"spec"}) | {"name": study.spec.name} for study in studies])
        return
    table = Table(title=f"Studies in {session.url}", title_justify="left", header_style="bold")
    for name in ("id", "created (UTC)", "state", "name", "SLOs", "saving"):
        table.add_column(name)
    for study in studies:
        found = study.recommendation
        saving = "—" if found is None or found.saving is None else f"{found.saving * 100:.1f} %"
        created = study.created.strftime("%Y-%m-%d %H:%M")
        table.add_row(study.id, created, study.state, study.spec.name, ", ".join(study.spec.slos), saving)
    result_console().print(table)


@app.command("show")
def show(study: StudyId = "latest", db: Db = None, as_json: Json = False) -> None:
    """One study: result, plot and every trial."""
    session = open_session(db, None)
    study_id = session.store.study(study).id
    if as_json:
        print_json(summary_json(session, study_id))
        return
    console = result_console()
    console.print(trials_table(study_summary(session, study_id)))
    print_outcome(console, session, study_id)


@app.command("resume")
def resume(study: StudyId = "latest", db: Db = None, out: Path | None = None, as_json: Json = False) -> None:
    """Go on with a study that was interrupted or killed; finished trials stay."""
    session = open_session(db, out)
    study_id = session.store.study(study).id
    outcome: NoFeasibleError | None = None
    with StudyBar(message_console(), objective_unit(session, study_id)) as bar:
        try:
            run_study(session, study_id, bar.update)
        except NoFeasibleError as error:
            outcome = error
    if as_json:
        print_json(summary_json(session, study_id))
    else:
        print_outcome(result_console(), session, study_id)
    if outcome is not None:
        raise outcome
