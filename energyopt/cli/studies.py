"""``energyopt studies list`` and ``show``: what is stored."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from energyopt.compose.results import open_session, study_summary

from .output import print_json, result_console
from .remote import Api, Key, list_remote, show_remote
from .tables import failures, trials_table
from .verdict import print_outcome, summary_json

Db = Annotated[str | None, typer.Option("--db", help="Database: a path or URL. Default: the user's own.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StudyId = Annotated[str, typer.Argument(help="Id, the unique beginning of one, or `latest`.")]


def list_studies(
    db: Db = None,
    api: Api = None,
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1)] = 20,
    as_json: Json = False,
) -> None:
    """The newest studies."""
    if api is not None:
        list_remote(api, key, limit, as_json)
        return
    session = open_session(db, None)
    studies = session.store.studies(limit=limit)
    if as_json:
        print_json([study.model_dump(mode="json", exclude={"spec"}) | {"name": study.spec.name} for study in studies])
        return
    table = Table(title=f"Studies in {session.url}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "created (UTC)", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("name", "SLOs", "saving"):
        table.add_column(name, overflow="fold")
    for study in studies:
        found = study.recommendation
        saving = "—" if found is None or found.saving is None else f"{found.saving * 100:.1f} %"
        created = study.created.strftime("%Y-%m-%d %H:%M")
        table.add_row(study.id, created, study.state, escape(study.spec.name), ", ".join(study.spec.slos), saving)
    result_console().print(table)


def show(study: StudyId = "latest", db: Db = None, api: Api = None, key: Key = None, as_json: Json = False) -> None:
    """One study: result, plot and every trial."""
    if api is not None:
        show_remote(api, key, study, as_json)
        return
    session = open_session(db, None)
    study_id = session.store.study(study).id
    if as_json:
        print_json(summary_json(session, study_id))
        return
    console = result_console()
    summary = study_summary(session, study_id)
    console.print(trials_table(summary))
    for line in failures(summary):
        console.print(line, markup=False, soft_wrap=True)
    print_outcome(console, session, study_id)
