"""``energyopt calibrate``: fit the simulator to your own hardware, with its error on runs it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from energyopt.compose.calibrate import CalibrationRequest, calibrate_csv, calibrate_study, write_constants
from energyopt.compose.results import open_session
from energyopt.core.errors import ConfigError
from tuner.simulator.calibration import Calibration

from .output import message_console, print_json, result_console
from .tables import DASH


def calibrate(
    gpu: Annotated[str, typer.Option("--gpu", "--hardware", help="GPU type, or the file of your own hardware.")],
    csv: Annotated[Path | None, typer.Option("--csv", help="Measured runs: a table.")] = None,
    study: Annotated[
        str | None, typer.Option(help="Measured runs: a study in the database (an id, or latest).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Description of the study's model: name, file, config.json.")
    ] = None,
    moe: Annotated[bool, typer.Option("--moe", help="The table is of models with experts.")] = False,
    start: Annotated[str | None, typer.Option(help="A file of constants to start from.")] = None,
    out: Annotated[Path, typer.Option(help="The file of constants to write.")] = Path("constants.json"),
    db: Annotated[str | None, typer.Option("--db", help="Database: a path or URL. Default: the user's own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Fit the simulator's constants to measured runs and store them with their error on runs held out."""
    if (csv is None) == (study is None):
        raise ConfigError("Give the measured runs by either --csv or --study.")
    request = CalibrationRequest(gpu, model, moe, start)
    message_console().print("[dim]fitting; each held-out fold is fitted anew[/]")
    if csv is not None:
        found = calibrate_csv(request, csv)
    else:
        found = calibrate_study(request, open_session(db, None), str(study))
    write_constants(found, out)
    if as_json:
        print_json(_document(found, out))
        return
    console = result_console()
    console.print(_table(found))
    console.print(f"{found.constants.provenance}; written to {out}", markup=False)
    console.print(f"next: energyopt plan MODEL --gpu {gpu} --constants {out} ...", markup=False)


def _table(found: Calibration) -> Table:
    title = f"Errors of the simulated figures, {found.runs} runs"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("figure")
    for name in ("fitted, mean", "median", "held out, mean", "median"):
        table.add_column(name, justify="right")
    for metric, fitted in found.fitted.items():
        held_out = found.held_out.get(metric)
        cells = [f"{100 * value:.1f} %" for value in (*fitted, *(held_out or ()))]
        table.add_row(metric, *cells, *([DASH] * (4 - len(cells))))
    return table


def _document(found: Calibration, out: Path) -> dict[str, object]:
    def named(errors: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
        return {name: {"mean": pair[0], "median": pair[1]} for name, pair in errors.items()}

    return {
        "source": "simulated",
        "file": str(out),
        "runs": found.runs,
        "errors_fitted": named(found.fitted),
        "errors_held_out": named(found.held_out),
        "constants": found.constants.model_dump(mode="json"),
    }
