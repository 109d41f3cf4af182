"""``energyopt dashboards export`` and ``apply``: boards, data sources and alerts for a Grafana."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dashboards.grafana import ConflictError
from energyopt.compose.dashboards import Servers, apply_dashboards, export_dashboards, token_from

from .output import print_json, result_console

Prometheus = Annotated[str, typer.Option(help="Prometheus, as Grafana reaches it.")]
Results = Annotated[
    str, typer.Option(help="Results database, as Grafana reaches it: postgresql://USER@HOST/DB or an SQLite file.")
]
Interval = Annotated[str, typer.Option(help="Scrape interval of that Prometheus; rates depend on it.")]
Budget = Annotated[
    float | None, typer.Option(min=1, help="Alert when all sensors of a cluster draw more watts than this.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

PROMETHEUS = "http://prometheus:9090"
RESULTS = "postgresql://energyopt@postgres/energyopt"
MARKS = {"create": "[green]+[/]", "update": "[yellow]~[/]", "unchanged": "[dim]=[/]", "conflict": "[bold red]![/]"}


def export(
    folder: Annotated[Path, typer.Argument(help="Where to; made if need be.")],
    prometheus: Prometheus = PROMETHEUS,
    results: Results = RESULTS,
    scrape_interval: Interval = "5s",
    power_budget: Budget = None,
    boards_at: Annotated[
        str, typer.Option(help="Where the boards will lie on Grafana's host.")
    ] = "/var/lib/grafana/dashboards/energyopt",
    as_json: Json = False,
) -> None:
    """Write provisioning files for Grafana and rules for Prometheus."""
    files = export_dashboards(folder, Servers(prometheus, results, scrape_interval, power_budget), boards_at)
    if as_json:
        print_json({"files": [str(path) for path in files]})
        return
    for path in files:
        result_console().print(str(path), markup=False, soft_wrap=True)


def apply(
    grafana: Annotated[str, typer.Option(help="Address of the Grafana server.")],
    token_env: Annotated[str, typer.Option(help="Environment variable with a service-account token.")] = (
        "GRAFANA_TOKEN"
    ),
    prometheus: Prometheus = PROMETHEUS,
    results: Results = RESULTS,
    scrape_interval: Interval = "5s",
    power_budget: Budget = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what others changed.")] = False,
    as_json: Json = False,
) -> None:
    """Send boards, data sources and alerts to a Grafana server; what is equal is not written."""
    servers = Servers(prometheus, results, scrape_interval, power_budget)
    token = token_from(os.environ, token_env)
    version, changes = apply_dashboards(grafana, token, servers, dry_run=dry_run, force=force)
    conflicts = [change for change in changes if change.action == "conflict"]
    if as_json:
        print_json({"grafana": version, "dry_run": dry_run, "changes": [asdict(change) for change in changes]})
    else:
        console = result_console()
        for change in changes:
            console.print(f"{MARKS[change.action]} {change.kind} {change.uid}: {change.action}")
            if change.diff and (dry_run or change.action == "conflict"):
                console.print(change.diff, markup=False, soft_wrap=True)
    if conflicts:
        names = ", ".join(change.uid for change in conflicts)
        raise ConflictError(
            f"{len(conflicts)} not written because someone else changed them: {names} (--force overwrites)."
        )
