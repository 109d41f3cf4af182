"""Joules as grams of CO2e and money, at a stated boundary, for a window and as counters that only grow."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from energyopt.core.errors import ConfigError
from energyopt.core.footprint import JOULES_PER_KILOWATT_HOUR, Footprint, FootprintConfig, boundary
from energyopt.core.results import EnergyTotal, Scope
from energyopt.core.units import Joules

from .grid import ConstantGrid, Grid, read_grid


class Rates:
    """What a joule costs. ``scopes`` are those of the sensors whose joules it is asked about."""

    def __init__(self, config: FootprintConfig, scopes: Iterable[Scope]) -> None:
        self.config = config
        self.boundary = boundary(scopes, config.pue)
        self.grid = _grid(config.grid)

    @property
    def factor(self) -> float:
        """Joules at the boundary per joule of the sensors."""
        return self.config.pue or 1.0

    @property
    def price(self) -> float | None:
        """Money per joule at the boundary."""
        price = self.config.price_per_kilowatt_hour
        return None if price is None else price / JOULES_PER_KILOWATT_HOUR

    def of(self, energy: EnergyTotal, start: datetime, end: datetime) -> Footprint:
        """The footprint of what sensors measured between two moments; draw is taken as even between them."""
        joules, error = energy.joules * self.factor, energy.error * self.factor
        grams = None if self.grid is None else self.grid.mean(start, end)
        return Footprint(
            boundary=self.boundary,
            joules=Joules(joules),
            error=Joules(error),
            pue=self.config.pue,
            grid_grams_per_joule=grams,
            carbon_grams=None if grams is None else joules * grams,
            carbon_error_grams=None if grams is None else error * grams,
            cost=None if self.price is None else joules * self.price,
            currency=None if self.price is None else self.config.currency,
        )


class RunningFootprint:
    """Grams and money since the start. ``advance`` it often: between two calls draw is taken as even.

    Joules of a time whose intensity is not known make no grams; ``unknown_joules`` counts them. Not thread-safe.
    """

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.grams = self.cost = self.unknown_joules = 0.0
        self.intensity: float | None = None
        self._last: tuple[datetime, float] | None = None

    def advance(self, now: datetime, joules: float) -> None:
        """``joules`` is a total of the sensors that only grows. A wall clock that was set back counts as no time."""
        before, total = self._last or (now, joules)
        spent, start = max(0.0, joules - total) * self.rates.factor, min(before, now)
        self._last = (now, max(joules, total))
        grid = self.rates.grid
        if grid is not None:
            mean, self.intensity = grid.mean(start, now), grid.mean(now, now)
            if mean is None:
                self.unknown_joules += spent
            else:
                self.grams += spent * mean
        if self.rates.price is not None:
            self.cost += spent * self.rates.price


def _grid(given: float | str | None) -> Grid | None:
    """A number, a number as text, or a file."""
    if given is None:
        return None
    try:
        return ConstantGrid(float(given))
    except ValueError:
        path = Path(str(given)).expanduser()
    if not path.is_file():
        raise ConfigError(f"grid intensity = {given!r} is not allowed: expected grams per kWh, or a CSV file.")
    return read_grid(path)
