"""``energyopt power-helper``: the small root process that sets limits for others and always puts them back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energyopt.compose.helper import install_helper, run_helper, run_inherited, unit_text
from telemetry.control.access import CONFIG

from .output import message_console


def power_helper(
    socket: Annotated[Path | None, typer.Option(help="Where to listen. Default: /run/energyopt/power.sock.")] = None,
    config: Annotated[Path, typer.Option(help="Who may cap what.")] = CONFIG,
    unit: Annotated[bool, typer.Option("--unit", help="Print the systemd unit and stop.")] = False,
    install: Annotated[bool, typer.Option("--install", help="Install unit and empty allow-list.")] = False,
    inherited: Annotated[int | None, typer.Option(hidden=True, help="Serve one connection, by descriptor.")] = None,
) -> None:
    """Set power limits for the users of an allow-list, and put back what was found when they leave. Runs as root."""
    if inherited is not None:
        run_inherited(inherited)
    elif unit:
        typer.echo(unit_text(), nl=False)
    elif install:
        for line in install_helper(config):
            message_console().print(line, markup=False, soft_wrap=True)
    else:
        run_helper(socket, config, notify=lambda line: message_console().print(line, markup=False, soft_wrap=True))
