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

    ``low`` and ``high`` are the bounds of the verification's interval, None without one.
    """

    tokens: float
    joules: Joules
    low: Joules | None
    high: Joules | None


def daily_saving(baseline: RunResult, recommendation: Recommendation) -> DailySaving | None:
    """From the baseline's own run and the verified saving; None where joules were not measured."""
    per_joule = baseline.tokens_per_joule
    if per_joule is None or recommendation.saving is None:
        return None
    tokens = baseline.output_rate * DAY

    def joules(share: float | None) -> Joules | None:
        return None if share is None else Joules(tokens / per_joule * share)

    saved = Joules(tokens / per_joule * recommendation.saving)
    return DailySaving(tokens, saved, joules(recommendation.saving_low), joules(recommendation.saving_high))
