"""Two runs side by side: how a figure changed, and whether that is more than chance.

Ratios after/before with a bootstrap interval: over requests for latencies, over slices of the window for rates and
joules. Requests of one run share its moments, so the intervals are optimistic; a difference that they call chance is
chance, one that they call real should be measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .result import BenchResult

RESAMPLES = 1000
CONFIDENCE = 0.95
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """``ratio`` is after/before; [low, high] its interval, None with too little to resample.

    ``better`` says whether the change is for the good; None where it may be chance.
    """

    name: str
    before: float
    after: float
    low: float | None
    high: float | None
    higher_is_better: bool

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else math.inf

    @property
    def better(self) -> bool | None:
        """True or False where the interval excludes no change."""
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return None
        return (self.ratio > 1) == self.higher_is_better


def compare(before: BenchResult, after: BenchResult, seed: int = 0) -> list[Difference]:
    """Every figure that both runs have."""
    rng = np.random.default_rng(seed)
    found = []
    for name, q in (("ttft", 0.5), ("ttft", 0.9), ("itl", 0.5), ("itl", 0.9), ("e2e", 0.5), ("e2e", 0.9)):
        old, new = before.samples.get(name, ()), after.samples.get(name, ())
        if old and new:
            found.append(_resampled(f"{name} p{q * 100:.0f}", _columns(old), _columns(new), _quantile(q), rng, False))
    for name, numerator, denominator in _RATIOS:
        one, two = _pairs(before, numerator, denominator), _pairs(after, numerator, denominator)
        if one is not None and two is not None:
            found.append(_resampled(name, one, two, _ratio_of_sums, rng, name in _GOOD))
    return found


_RATIOS = (
    ("output tok/s", "output_tokens", "seconds"),
    ("requests/s", "requests", "seconds"),
    ("output tokens/J", "output_tokens", "joules"),
    ("J/request", "joules", "requests"),
)
_GOOD = {"output tok/s", "requests/s", "output tokens/J"}
Statistic = Callable[[Floats], float]


def _resampled(name: str, old: Floats, new: Floats, of: Statistic, rng: np.random.Generator, good: bool) -> Difference:
    """Rows are resampled whole, each run on its own."""
    before, after = of(old), of(new)
    low = high = None
    if min(len(old), len(new)) >= 8 and before > 0 and after > 0:
        drawn = [
            of(new[rng.integers(0, len(new), len(new))]) / max(of(old[rng.integers(0, len(old), len(old))]), 1e-12)
            for _ in range(RESAMPLES)
        ]
        tail = (1 - CONFIDENCE) / 2
        low, high = (float(value) for value in np.quantile(drawn, [tail, 1 - tail]))
    return Difference(name, before, after, low, high, good)


def _quantile(q: float) -> Statistic:
    return lambda rows: float(np.quantile(rows[:, 0], q, method="inverted_cdf"))


def _ratio_of_sums(rows: Floats) -> float:
    below = float(rows[:, 1].sum())
    return float(rows[:, 0].sum()) / below if below else 0.0


def _columns(values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)[:, None]


def _pairs(run: BenchResult, numerator: str, denominator: str) -> Floats | None:
    """Slices as rows; None where one of both is unknown in some slice, or where joules are not valid."""
    rows = [(getattr(one, numerator), getattr(one, denominator)) for one in run.slices]
    joules = "joules" in (numerator, denominator)
    if not rows or (joules and not run.run.power_valid) or any(None in row for row in rows):
        return None
    return np.asarray(rows, dtype=np.float64)
