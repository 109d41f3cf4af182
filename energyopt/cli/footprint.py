"""The options by which every verb takes carbon and cost, and how it shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from energyopt.core.config import parse_config
from energyopt.core.footprint import Footprint, FootprintConfig, describe_boundary
from energyopt.core.units import format_figure, format_si

Pue = Annotated[float | None, typer.Option(help="Power of the building over its computers', such as 1.2.")]
Grid = Annotated[
    str | None, typer.Option("--grid-intensity", help="Grams of CO2e per kWh, or a CSV file: time,grams_per_kwh.")
]
Price = Annotated[float | None, typer.Option("--electricity-price", help="Price of a kWh.")]
Currency = Annotated[str, typer.Option(help="Currency of the price, such as EUR.")]


def footprint_config(pue: float | None, grid: str | None, price: float | None, currency: str) -> FootprintConfig:
    """Raises ConfigError for a value that is not allowed."""
    given = {"pue": pue, "grid": grid, "price_per_kilowatt_hour": price, "currency": currency}
    return parse_config(FootprintConfig, given)


def footprint_lines(found: Footprint, *, idle: bool) -> Iterator[str]:
    """The footprint in sentences; what is not known is not mentioned."""
    if found.carbon_grams is not None:
        error = format_si(found.carbon_error_grams, "g")
        yield f"carbon {format_si(found.carbon_grams, 'g')} CO2e ± {error} (location-based)"
    if found.cost is not None:
        yield f"cost {format_figure(found.cost)} {found.currency}"
    yield f"boundary: {describe_boundary(found.boundary, idle=idle)}"
