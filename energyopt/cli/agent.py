"""``energyopt agent``: measures everything on this host and shows it to Prometheus, until it is told to stop."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from energyopt.compose.agent import PORT, AgentRequest, AgentState, run_agent
from energyopt.core.config import parse_config
from energyopt.core.units import parse_seconds

from .output import message_console, print_json


def agent(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 shows the pages to the network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    period: Annotated[str, typer.Option(help="Time between readings of a sensor, 20ms to 10s.")] = "100ms",
    dcgm_compat: Annotated[
        bool, typer.Option("--dcgm-compat", help="Also serve /dcgm/metrics under dcgm-exporter's names.")
    ] = False,
    estimate_cpu: Annotated[
        bool, typer.Option("--estimate-cpu", help="Estimate CPU energy from utilisation where it is not measured.")
    ] = False,
    db: Annotated[
        str | None, typer.Option("--db", help="Keep energy there: a path or URL; else it is only shown.")
    ] = None,
    keep_seconds: Annotated[str, typer.Option(help="How long rows of seconds are kept.")] = "168h",
    keep_minutes: Annotated[str, typer.Option(help="How long rows of minutes are kept.")] = "9600h",
    root: Annotated[Path, typer.Option(help="Where the host's /sys, /proc and /dev are mounted.")] = Path("/"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document once it serves.")] = False,
) -> None:
    """Measure every GPU and CPU of this host and serve /metrics; one process a host. Stop with Ctrl-C or SIGTERM."""
    asked = {
        "host": host,
        "port": port,
        "period": parse_seconds(period),
        "dcgm": dcgm_compat,
        "estimate": estimate_cpu,
        "root": root,
        "db": db,
        "keep_seconds": parse_seconds(keep_seconds),
        "keep_minutes": parse_seconds(keep_minutes),
    }
    request = parse_config(AgentRequest, asked)
    console, stop = message_console(), Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: stop.set())

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    def ready(state: AgentState) -> None:
        if as_json:
            print_json(state.model_dump())
            sys.stdout.flush()
        count = len(state.sensors)
        say(f"{count} sensor{'' if count == 1 else 's'} on {state.url}{state.pages[0]} (stop with Ctrl-C)")

    run_agent(request, stop, notify=say, on_ready=ready)
    say("stopped")
