"""Options of whose energy it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from energyopt.core.errors import ConfigError

ApiKeys = Annotated[Path | None, typer.Option(help="File of lines 'TENANT KEY': energy is told by tenant in /metrics.")]
IdleEnergy = Annotated[
    Literal["separate", "share", "reservation"],
    typer.Option(help="Who answers for idle joules: nobody, tenants by use, or tenants by --reservation."),
]
Reservation = Annotated[
    list[str] | None, typer.Option(help="TENANT=SHARE of the machine, such as search=0.5; repeat for several.")
]


def shares(entries: Sequence[str]) -> dict[str, float]:
    """``["a=0.5"]`` -> ``{"a": 0.5}``. Raises ConfigError; whether the shares are allowed is the policy's to say."""
    found: dict[str, float] = {}
    for entry in entries:
        tenant, _, share = entry.partition("=")
        try:
            found[tenant] = float(share)
        except ValueError as error:
            raise ConfigError(f"--reservation {entry!r} is not allowed: expected TENANT=SHARE.") from error
    return found
