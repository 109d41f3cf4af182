"""What a trial is worth: a value to maximise and relative constraints, in a form no search library can misread.

Constraints always have the same keys in the same order, each within [-1, 1], at most 0 when kept: ``fits`` (it ran),
``completes`` (no request failed) and one per SLO. A trial is feasible if and only if every constraint is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from energyopt.core.errors import TrialError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import TrialOutcome

FITS = "fits"
COMPLETES = "completes"
KEPT = -1.0
BROKEN = 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """How a trial did. ``value`` is the logarithm of what is maximised, None where nothing was measured."""

    value: float | None
    constraints: Mapping[str, float]

    @property
    def feasible(self) -> bool:
        return all(violation <= 0 for violation in self.constraints.values())

    @property
    def fits(self) -> bool:
        return self.constraints[FITS] <= 0


class Objective:
    """Turns results into scores for one study: ``maximize`` is what RunResult property is maximised."""

    def __init__(self, maximize: str, slos: Sequence[str]) -> None:
        self._maximize = maximize
        self._slos = tuple(dict.fromkeys(str(Slo.parse(text)) for text in slos))
        self.keys = (FITS, COMPLETES, *self._slos)

    @property
    def unit(self) -> str:
        """The unit of ``value``."""
        return "tokens/J" if self._maximize == "tokens_per_joule" else "tokens/s"

    def value(self, result: RunResult) -> float | None:
        """The figure maximised in its own unit; None if it was not measured or is not above 0."""
        measured: float | None = result.tokens_per_joule if self._maximize == "tokens_per_joule" else result.output_rate
        if measured is None or not math.isfinite(measured) or measured <= 0:
            return None
        return measured

    def score(self, result: RunResult | None) -> Score:
        """The score of a run; None is a configuration that failed to run, which breaks every constraint."""
        if result is None:
            return Score(None, dict.fromkeys(self.keys, BROKEN))
        value = self.value(result)
        found = {verdict.slo: verdict.violation for verdict in result.verdicts}
        constraints = {FITS: KEPT, COMPLETES: _completes(result)}
        constraints |= {slo: _clip(found.get(slo)) for slo in self._slos}
        return Score(None if value is None else math.log(value), constraints)

    def outcome(self, result: RunResult) -> TrialOutcome:
        """FEASIBLE only if every SLO was judged and kept and every request finished."""
        return TrialOutcome.FEASIBLE if self.score(result).feasible else TrialOutcome.INFEASIBLE


def outcome_of(error: TrialError) -> TrialOutcome:
    """The stored outcome of a configuration that failed."""
    return TrialOutcome(error.status)


def learnable(scores: Iterable[Score]) -> list[Score]:
    """The same scores with every gap filled, so that a model can learn from failures too.

    A failure takes the worst value and the worst violations that a run showed, and keeps ``fits`` broken: leaving it
    out would let the search ask next to it again, and an invented extreme would bend the model everywhere else.
    """
    known = list(scores)
    ran = [score for score in known if score.fits]
    floor = min((score.value for score in ran if score.value is not None), default=0.0)
    return [_filled(score, floor, ran) for score in known]


def _filled(score: Score, floor: float, ran: Sequence[Score]) -> Score:
    value = floor if score.value is None else score.value
    if score.fits:
        return Score(value, score.constraints)
    worst = {key: max((other.constraints[key] for other in ran), default=BROKEN) for key in score.constraints}
    return Score(value, worst | {FITS: BROKEN})


def _completes(result: RunResult) -> float:
    if result.requests <= 0:
        return BROKEN
    return _clip(result.failed_requests / result.requests) if result.failed_requests else KEPT


def _clip(violation: float | None) -> float:
    """Into [-1, 1]; unknown and NaN count as broken: what was not measured was not kept."""
    if violation is None or math.isnan(violation):
        return BROKEN
    return min(BROKEN, max(KEPT, violation))
