"""Which of the measured plans to take.

All plans of a problem are compared by one figure, joules or seconds; where joules were asked, every window needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ..choices import Plan
from .ports import Energy, Measurement, PlanError

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
        return None if self.energy is None else self.energy.joules

    @property
    def energy(self) -> Energy | None:
        """The median, None where a window has none. Its error is the sensor's, or what the windows differ by if that
        is more; a source is named for each kind that a window came from."""
        known = [window.energy for window in self.windows if window.energy is not None]
        if len(known) < len(self.windows):
            return None
        joules = [energy.joules for energy in known]
        error = max(median(energy.error for energy in known), (max(joules) - min(joules)) / 2)
        return Energy(median(joules), error, "+".join(sorted({energy.source for energy in known})))

    def spread(self, objective: Objective) -> float:
        """Half of the range of the objective's figure, relative to its median: what chance alone moves it by."""
        figures = self._figures(objective)
        return (max(figures) - min(figures)) / 2 / median(figures)

    def score(self, objective: Objective) -> float:
        """The median of the objective's figure. Raises ValueError for joules that a window lacks."""
        return median(self._figures(objective))

    def _figures(self, objective: Objective) -> list[float]:
        if objective == "time":
            return [window.seconds for window in self.windows]
        figures = [window.joules for window in self.windows if window.joules is not None]
        if len(figures) < len(self.windows):
            raise ValueError(f"A window of the plan {self.plan} has no joules.")
        return figures


def choose(default: Plan, series: Mapping[Plan, Series], objective: Objective) -> Plan:
    """The plan with the least of the objective. For energy only plans within ``TIME_MARGIN`` of the fastest count.
    Raises PlanError where a window lacks the joules: what time decides has no place in a table of energy.

    The default stays unless the winner is better by more than both their spreads: a change must be worth its name.
    """
    if objective == "energy" and any(one.joules is None for one in series.values()):
        raise PlanError("The sensor told no joules of some windows, so the plans cannot be compared by energy.")
    fastest = min(one.seconds for one in series.values())
    limit = fastest * (TIME_MARGIN if objective == "energy" else 1.0)
    best = min((one for one in series.values() if one.seconds <= limit), key=lambda one: one.score(objective))
    if default not in series or series[default].seconds > limit * (1 + series[default].spread("time")):
        return best.plan
    stays = series[default]
    noise = stays.spread(objective) + best.spread(objective)
    return best.plan if best.score(objective) * (1 + noise) < stays.score(objective) else default
