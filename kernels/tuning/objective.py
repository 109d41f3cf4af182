"""Which of the measured plans to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ..choices import Plan
from .ports import Measurement

Objective = Literal["energy", "time"]

TIME_MARGIN = 1.03
"""How much slower than the fastest a plan may be that saves energy."""


@dataclass(frozen=True, slots=True)
class Series:
    """A plan's windows, each measured between those of its rivals."""

    plan: Plan
    windows: tuple[Measurement, ...]

    @property
    def seconds(self) -> float:
        return median(window.seconds for window in self.windows)

    @property
    def joules(self) -> float | None:
        known = [window.joules for window in self.windows if window.joules is not None]
        return median(known) if len(known) == len(self.windows) else None

    def spread(self, objective: Objective) -> float:
        """Half of the range of the objective's figure, relative to its median: what chance alone moves it by."""
        figures = [self._figure(window, objective) for window in self.windows]
        return (max(figures) - min(figures)) / 2 / median(figures)

    def score(self, objective: Objective) -> float:
        return median(self._figure(window, objective) for window in self.windows)

    @staticmethod
    def _figure(window: Measurement, objective: Objective) -> float:
        if objective == "energy" and window.joules is not None:
            return window.joules
        return window.seconds


def choose(default: Plan, series: Mapping[Plan, Series], objective: Objective) -> Plan:
    """The plan with the least of the objective. For energy only plans within ``TIME_MARGIN`` of the fastest count.

    The default stays unless the winner is better by more than both their spreads: a change must be worth its name.
    """
    fastest = min(one.seconds for one in series.values())
    limit = fastest * (TIME_MARGIN if objective == "energy" else 1.0)
    best = min((one for one in series.values() if one.seconds <= limit), key=lambda one: one.score(objective))
    if default not in series or series[default].seconds > limit * (1 + series[default].spread("time")):
        return best.plan
    stays = series[default]
    noise = stays.spread(objective) + best.spread(objective)
    return best.plan if best.score(objective) * (1 + noise) < stays.score(objective) else default
