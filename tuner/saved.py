"""What a winner saves in a day at the load of its study."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.results import RunResult
from energyopt.core.study import Recommendation
from energyopt.core.units import Joules

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class DailySaving:
    """``tokens`` a day at the baseline's rate, and the joules by which the winner makes them cheaper.

    ``low`` and ``high`` are bounds that hold both the verification's interval of the share and the error of the
    baseline's joules, None without an interval. ``source`` says where those joules are from.
    """

    tokens: float
    joules: Joules
    low: Joules | None
    high: Joules | None
    source: str
    confidence: float


def daily_saving(baseline: RunResult, recommendation: Recommendation) -> DailySaving | None:
    """From the baseline's own run and the verified saving; None where joules were not measured."""
    per_joule, energy = baseline.tokens_per_joule, baseline.energy
    if per_joule is None or energy is None or recommendation.saving is None:
        return None
    tokens = baseline.output_rate * DAY
    spent, error = tokens / per_joule, energy.error / energy.joules
    low, high = recommendation.saving_low, recommendation.saving_high
    bounds = [] if low is None or high is None else [share * (1 + e) for share in (low, high) for e in (-error, error)]
    return DailySaving(
        tokens=tokens,
        joules=Joules(spent * recommendation.saving),
        low=Joules(spent * min(bounds)) if bounds else None,
        high=Joules(spent * max(bounds)) if bounds else None,
        source=energy.label,
        confidence=recommendation.confidence,
    )
