"""Options of power limits, and what they amount to."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from energyopt.core.config import PowerConfig
from energyopt.core.units import parse_hertz, parse_watts

PowerCap = Annotated[
    str | None, typer.Option(help="Cap of each device, such as 300W; `auto`: as low as --slo allows. Put back at exit.")
]
Slos = Annotated[list[str] | None, typer.Option("--slo", help="For --power-cap auto, such as ttft:p90<500ms; repeat.")]
SmClock = Annotated[str | None, typer.Option(help="SM clock of each device, such as 1.2GHz; put back.")]
AUTO = "auto"


class PowerAsked(NamedTuple):
    """Limits, and whether a governor may go below them."""

    limits: PowerConfig
    auto: bool


def power_asked(cap: str | None, sm_clock: str | None) -> PowerAsked:
    """Raises ConfigError for a cap that is neither a power nor ``auto``."""
    return PowerAsked(
        PowerConfig(
            cap=None if cap is None or cap == AUTO else parse_watts(cap),
            sm_clock=None if sm_clock is None else parse_hertz(sm_clock),
        ),
        cap == AUTO,
    )
