"""``energyopt accuracy``: how far the simulator's constants are from a published table, for anybody's table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from energyopt.compose.results import open_session
from energyopt.compose.warm_start import METRICS, Comparison, compare
from energyopt.core.errors import ConfigError
from tuner.simulator.accuracy import cap_sweep_accuracy, mlenergy_accuracy
from tuner.simulator.report import accuracy_markdown

from .output import print_json, result_console
from .tables import DASH

Columns = ("tok_s_mape", "watts_mape", "j_per_token_mape", "tok_s_bias", "watts_bias", "j_per_token_bias")


def mlenergy(
    file: Annotated[Path, typer.Argument(help="A CSV file of the ML.ENERGY v3 format.")],
    calibrate: Annotated[Path | None, typer.Option(help="Fit the constants on this table first.")] = None,
    anchors: Annotated[int, typer.Option(help="0, or 2: correct each series by its own two ends.")] = 0,
    unseen: Annotated[
        Literal["nothing", "family", "batch"],
        typer.Option(help="Predict each model family, or every other batch, by constants fitted on the rest."),
    ] = "nothing",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every row.")] = False,
) -> None:
    """Score the constants on a table of measured J/token, tok/s and watts."""
    document = mlenergy_accuracy(file, calibrate=calibrate, anchors=anchors, unseen=unseen)
    if as_json:
        print_json(document)
        return
    console = result_console()
    console.print(f"{document['table']}: {document['rows_scored']} rows scored, simulated by {document['constants']}")
    console.print(f"filter: {document['filter']}; removed: {document['rows_removed']}", markup=False)
    console.print(_table("class", document["classes"]))
    console.print(_table("series", document["series"]))


def cap_sweep(
    file: Annotated[Path, typer.Argument(help="A CSV file of a power-cap sweep.")],
    constants: Annotated[str | None, typer.Option(help="A file of constants instead of the released ones.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every row.")] = False,
) -> None:
    """Score the cap response: tok/s, watts and the best cap of every series, from its uncapped row."""
    document = cap_sweep_accuracy(file, constants=constants)
    if as_json:
        print_json(document)
        return
    table = Table(title="Cap sweep (simulated)", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("series", overflow="fold")
    for name in ("tok/s mean", "tok/s worst", "W mean", "W worst", "best cap", "predicted"):
        table.add_column(name, justify="right")
    for name, row in document["series"].items():
        figures = (row["tok_s_mape"], row["tok_s_worst"], row["watts_mape"], row["watts_worst"])
        cells = [f"{100 * value:.1f} %" for value in figures]
        table.add_row(name, *cells, f"{row['best_cap']:g} W", f"{row['best_cap_predicted']:g} W")
    result_console().print(table)


def study(
    study_id: Annotated[str, typer.Argument(help="A study whose first trials were simulated, or latest.")] = "latest",
    db: Annotated[str | None, typer.Option("--db", help="Database: a path or URL. Default: the user's own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Predicted against measured, for the trials of a study that the simulator chose."""
    found = compare(open_session(db, None), study_id)
    if as_json:
        rows = [
            {"trial": one.trial.number, "predicted": dict(one.predicted), "measured": dict(one.measured)}
            for one in found
        ]
        print_json({"source": "simulated", "trials": rows})
        return
    title = "Predicted (simulated) / measured (error)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("trial", *METRICS):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(str(one.trial.number), *(_pair(one, metric) for metric in METRICS))
    result_console().print(table)


def _pair(one: Comparison, metric: str) -> str:
    error = one.error(metric)
    if error is None:
        return DASH
    return f"{one.predicted[metric]:.3g} / {one.measured[metric]:.3g} ({error:+.0%})"


def page(
    tables: Annotated[Path, typer.Argument(help="The folder with the published tables.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/accuracy.md"),
) -> None:
    """Write the page of all errors, released and unseen, good and bad."""
    text = accuracy_markdown(tables)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The page {out} cannot be written: {error.strerror}.") from error


def _table(what: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title=f"Errors by {what}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column(what, overflow="fold")
    for name in ("rows", "tok/s", "W", "J/tok", "bias tok/s", "bias W", "bias J"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in rows.items():
        cells = [f"{100 * row[column]:.1f}%" for column in Columns]
        table.add_row(name, str(row["rows"]), *cells)
    return table
