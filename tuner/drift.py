"""Whether the machine drifted while a study ran: the baseline's own measurements, in their order.

A neighbour, the weather or a fan change what everything is worth. A straight line through the logarithm of the
baseline's repeated values says by how much; only a slope that chance hardly explains (two-sided t test) is believed and
taken out, because correcting by noise would add it to every trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.special import stdtr

LEAST = 3
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Drift:
    """``rate`` is the relative change of the baseline's worth per trial, ``chance`` its p-value; ``runs`` behind it."""

    rate: float
    chance: float
    runs: int

    @property
    def believed(self) -> bool:
        return self.chance < SIGNIFICANT

    def factor(self, number: int) -> float:
        """By what to divide a figure of trial ``number`` to get what it would have been at the start."""
        return math.exp(self.rate * number) if self.believed else 1.0


NO_DRIFT = Drift(0.0, 1.0, 0)


def drift_of(points: Sequence[tuple[int, float]]) -> Drift:
    """The drift behind (trial number, value) of one configuration; NO_DRIFT with fewer than three."""
    if len(points) < LEAST or len({number for number, _ in points}) < 2:
        return Drift(0.0, 1.0, len(points))
    numbers, logs = [float(number) for number, _ in points], [math.log(value) for _, value in points]
    middle, level = fmean(numbers), fmean(logs)
    spread = math.fsum((number - middle) ** 2 for number in numbers)
    rate = math.fsum((n - middle) * (log - level) for n, log in zip(numbers, logs, strict=True)) / spread
    rest = math.fsum((log - level - rate * (n - middle)) ** 2 for n, log in zip(numbers, logs, strict=True))
    freedom = len(points) - 2
    error = math.sqrt(rest / freedom / spread)
    if error < 1e-12:
        return Drift(rate, 0.0 if abs(rate) > 1e-12 else 1.0, len(points))
    return Drift(rate, float(2 * stdtr(freedom, -abs(rate) / error)), len(points))
