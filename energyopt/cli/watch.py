"""``energyopt watch``: power, limits, clocks and energy of every device, live in a terminal."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from energyopt.compose.watch import LocalPages, RemotePages
from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from telemetry.watch import view

from .output import METER_HELP, print_json, result_console
from .watch_screen import WatchApp
from .watch_table import view_json


def watch(
    address: Annotated[
        str | None, typer.Argument(help="HOST:PORT or URL of an agent or server; default: this machine's sensors.")
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between looks.")] = 1.0,
    meter: Annotated[str, typer.Option(metavar="KIND", help=METER_HELP)] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Look once over --every seconds and print it.")] = False,
) -> None:
    """Watch power, limit, clock, throttling, energy and tokens per joule (q quits)."""
    with closing(LocalPages(meter) if address is None else RemotePages(address)) as pages:
        if as_json:
            first = pages.read()
            MonotonicClock().sleep(Seconds(every))
            shown = view_json(view(first, first, pages.read()))
            print_json({"source": pages.name, "notes": list(pages.notes), **shown})
            return
        if not result_console().is_terminal:
            raise ConfigError("watch draws on a terminal: run it in one, or ask for --json.")
        WatchApp(pages, every).run()
