"""``energyopt measure -- COMMAND``: joules, watts and time of any command, whose exit code becomes ours."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from energyopt.compose.command import CommandError
from energyopt.compose.kept_run import Keep
from energyopt.compose.measure import Measured, Progress, measure_command
from energyopt.core.errors import ConfigError
from energyopt.core.units import format_duration, format_si

from .footprint import Currency, Grid, Price, Pue, footprint_config, footprint_lines
from .output import METER_HELP, finite, message_console, print_error, print_json


def measure(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run; no shell reads it.")],
    meter: Annotated[str, typer.Option(metavar="KIND", help=METER_HELP)] = "auto",
    pue: Pue = None,
    grid_intensity: Grid = None,
    electricity_price: Price = None,
    currency: Currency = "USD",
    db: Annotated[str | None, typer.Option("--db", help="Keep every piece of the energy there: a path or URL.")] = None,
    run: Annotated[str | None, typer.Option(help="Name of the run in the database; default: a new one.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the JSON document there, apart from the command's.")
    ] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="A line while it runs; default: on a terminal.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document after the command's output.")
    ] = False,
) -> None:
    """Run a command and tell the joules of this machine's devices meanwhile, each with its source and error."""
    console = message_console()
    line = _Line(console) if (console.is_terminal if progress is None else progress) else None
    config = footprint_config(pue, grid_intensity, electricity_price, currency)
    if run is not None and db is None:
        raise ConfigError("--run names a run in a database: give --db too.")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"The folder of --output {output} does not exist.")
    try:
        measured = measure_command(
            command,
            meter_kind=meter,
            footprint=config,
            on_tick=line.show if line else lambda progress: None,
            keep=None if db is None else Keep(db, run or f"measure-{secrets.token_hex(4)}"),
        )
    except CommandError as error:
        print_error(error)
        raise typer.Exit(error.exit_code) from error
    finally:
        if line:
            line.clear()
    if output is not None:
        _write(output, measured)
    if as_json:
        print_json(measured.document())
    else:
        _show(console, measured)
    raise typer.Exit(measured.ended.exit_code)


class _Line:
    """One line that is drawn over and over. The cursor rests at its beginning, so that the command writes over it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = False

    def show(self, progress: Progress) -> None:
        figures = (format_duration(progress.seconds), format_si(progress.watts, "W"), format_si(progress.joules, "J"))
        self._draw("  ".join(figures))

    def clear(self) -> None:
        if self._shown:
            self._draw("")

    def _draw(self, text: str) -> None:
        self._shown = True
        self._console.file.write(f"\r\x1b[2m{text}\x1b[0m\x1b[K\r")
        self._console.file.flush()


def _show(console: Console, measured: Measured) -> None:
    """On standard error, beside the command's own output."""
    how = f"killed by {measured.ended.signal}" if measured.ended.signal else f"exit code {measured.ended.exit_code}"
    seconds = format_si(measured.seconds, "s", 4)
    console.print(f"{measured.command[0]}: {seconds}, {how}", markup=False, style="bold")
    if measured.readings:
        console.print(_table(measured))
    if measured.total is None:
        missing = "Energy is not known." if not measured.readings else "A sum is not known: a sensor did not answer."
        console.print(missing, markup=False)
    if measured.footprint is not None:
        for text in footprint_lines(measured.footprint, idle=True):
            console.print(text, markup=False, soft_wrap=True)
    for note in measured.reasons:
        console.print(note, markup=False, style="dim", soft_wrap=True)


def _table(measured: Measured) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", overflow="fold")
    table.add_column("covers")
    for name in ("energy", "±", "mean power"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source")
    for reading in measured.readings:
        power = format_si(reading.mean_power, "W")
        figures = (format_si(reading.joules, "J", 4), format_si(reading.error, "J"), power)
        table.add_row(reading.device, reading.scope, *figures, reading.source)
    total = measured.total
    if total is not None and len(measured.readings) > 1:
        power = format_si(total.joules / measured.seconds if measured.seconds > 0 else None, "W")
        table.add_row("all", "", format_si(total.joules, "J", 4), format_si(total.error, "J"), power, total.label)
    return table


def _write(path: Path, measured: Measured) -> None:
    text = json.dumps(finite(measured.document()), indent=2) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(text)  # the command has run; what it took must not be lost
        raise ConfigError(f"{path} cannot be written: {error.strerror}. The document is above.") from error
