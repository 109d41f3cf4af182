"""What joules mean outside the machine: boundary, grams of CO2e, money. Settings and results; no arithmetic of time.

Three boundaries are told apart, and every figure states its own: what the sensors cover (GPU boards, CPU packages),
whether the cooling and conversion losses of the building are in (x PUE), and whether idle time is in. Unknown is None:
without an intensity there are no grams, without a price no money, without a PUE no building.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from .config import Config
from .results import Result, Scope
from .units import Joules

JOULES_PER_KILOWATT_HOUR = 3.6e6


class FootprintConfig(Config):
    """``grid`` is grams of CO2e per kilowatt hour, or the path of a CSV file of them over time.

    ``pue`` is the building's total power over that of its computers. Location-based: what the grid emits where the
    machine stands, not what certificates say.
    """

    pue: float | None = Field(None, ge=1, le=10)
    grid: float | str | None = None
    price_per_kilowatt_hour: float | None = Field(None, ge=0, le=1e6)
    currency: str = Field("USD", pattern="^[A-Z]{3}$")

    @property
    def empty(self) -> bool:
        """True if nothing was asked for."""
        return self.pue is None and self.grid is None and self.price_per_kilowatt_hour is None


class Footprint(Result):
    """One amount of energy in grams and money.

    ``joules`` are at the boundary: those of the sensors, times ``pue`` where it is known. Errors are those of the
    joules alone; intensity, price and PUE are taken as given.
    """

    boundary: str
    joules: Joules
    error: Joules
    pue: float | None = None
    grid_grams_per_joule: float | None = None
    carbon_grams: float | None = None
    carbon_error_grams: float | None = None
    cost: float | None = None
    currency: str | None = None


def boundary(scopes: Iterable[Scope], pue: float | None) -> str:
    """``"gpu"``, ``"cpu"`` or ``"gpu+cpu"`` by what the sensors cover, with ``"+pue"`` where the building is in.

    "cpu" is packages, and DRAM where it has a sensor; fans, disks and power supplies of the host are never in.
    """
    on_cpu = [scope in (Scope.CPU_PACKAGE, Scope.DRAM) for scope in scopes]
    parts = [name for name, there in (("gpu", not all(on_cpu)), ("cpu", any(on_cpu))) if there]
    return "+".join([*parts, *(["pue"] if pue is not None else [])]) or "nothing"


def describe_boundary(label: str, *, idle: bool) -> str:
    """The boundary in words, for reports."""
    words = {"gpu": "GPU boards", "cpu": "CPU packages", "pue": "the building (PUE)", "nothing": "nothing"}
    covered = ", ".join(words[part] for part in label.split("+"))
    return f"{covered}; idle time {'included' if idle else 'not included'}"
