"""``energyopt studies list`` and ``show`` with ``--api``: the same screens, of a service."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from energyopt.client import Client, calls

from .output import print_json, result_console

Api = Annotated[
    str | None,
    typer.Option("--api", metavar="URL", envvar="ENERGYOPT_API", help="Ask a service, not a database."),
]
Key = Annotated[
    str | None, typer.Option("--key", envvar="ENERGYOPT_API_KEY", help="Key for --api; better in the environment.")
]


def list_remote(url: str, key: str | None, limit: int, as_json: bool) -> None:
    """The newest studies of a service."""
    with Client(url, key) as client:
        page = client.send(calls.list_studies(limit=min(limit, 500)))
    if as_json:
        print_json([study.model_dump(mode="json") for study in page.items])
        return
    table = Table(title=f"Studies of {url}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "created (UTC)", "state", "done"):
        table.add_column(name, no_wrap=True)
    for name in ("name", "SLOs", "saving"):
        table.add_column(name, overflow="fold")
    for study in page.items:
        saving = (study.recommendation or {}).get("saving")
        percent = "—" if not isinstance(saving, float) else f"{saving * 100:.1f} %"
        done = "—" if study.progress is None else f"{study.progress.get('done')}/{study.progress.get('total')}"
        created = study.created.strftime("%Y-%m-%d %H:%M")
        table.add_row(study.id, created, study.state, done, escape(study.name), ", ".join(study.slos), percent)
    result_console().print(table)


def show_remote(url: str, key: str | None, study: str, as_json: bool) -> None:
    """One study of a service: where it stands, its best trials, and what to run."""
    with Client(url, key) as client:
        if study == "latest":
            newest = client.send(calls.list_studies(limit=1)).items
            study = newest[0].id if newest else study
        found = client.send(calls.get_study(study))
        order = found.maximize
        trials = client.send(calls.list_trials(study, sort=order, outcomes=("feasible",), limit=20))
        ready = found.recommendation is not None
        command = client.send(calls.manifest(study)).strip() if ready else None
    if as_json:
        best = [trial.model_dump(mode="json") for trial in trials.items]
        print_json({"study": found.model_dump(mode="json"), "best": best, "command": command})
        return
    console = result_console()
    console.print(f"{found.name}  {found.state}  SLO: {', '.join(found.slos)}", markup=False)
    if found.error:
        console.print(found.error, markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("trial", "origin", "tokens/J", "tok/s", "TTFT p90", "ITL p99", "joules"):
        table.add_column(name, justify="right")
    for trial in trials.items:
        figures = (trial.tokens_per_joule, trial.output_rate, trial.ttft_p90, trial.itl_p99)
        shown = ["—" if figure is None else f"{figure:.3g}" for figure in figures]
        table.add_row(str(trial.number), trial.origin, *shown, trial.energy_source or "—")
    console.print(table if trials.items else "No feasible trial yet.")
    if command is not None:
        console.print(f"Serve the winner:\n  {command}", markup=False, soft_wrap=True)
