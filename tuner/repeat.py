"""Which configuration is measured once more: a leader that is not sure of its SLOs, or the baseline, to see drift."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.study import Origin, TrialRecord, TrialState

from .objective import Objective
from .space import Params
from .verify import rank

MOST = 3
"""Measurements of one configuration during the search; the verification adds its own."""
SHARE = 5
"""At most one in so many trials is a repetition of a doubtful leader."""
REFERENCE_EVERY = 12
"""Trials between two measurements of the baseline."""


class Repeats:
    """Decides from stored trials alone, so a resumed study decides the same. ``trials`` is the study's budget."""

    def __init__(self, objective: Objective, trials: int) -> None:
        self._objective, self._most = objective, trials // SHARE

    def next(self, known: Sequence[TrialRecord], baseline: Params) -> Params | None:
        """What to measure again now; None if nothing needs it."""
        done = [trial for trial in known if trial.state is TrialState.DONE and not trial.origin.verifies]
        if any(trial.origin is Origin.REPEAT and trial.state is not TrialState.DONE for trial in known):
            return None  # one after another: what the last one shows decides about the next
        if self._wants_reference(done, baseline):
            return baseline
        spent = sum(trial.origin is Origin.REPEAT and trial.params != baseline for trial in done)
        if spent >= self._most:
            return None
        ranked = rank(done, self._objective)
        sure = max((one.value for one in ranked if not one.doubts), default=float("-inf"))
        doubtful = (one for one in ranked if one.doubts and one.runs < MOST and one.value > sure)
        return next((one.params for one in doubtful), None)

    def _wants_reference(self, done: Sequence[TrialRecord], baseline: Params) -> bool:
        last = max((place for place, trial in enumerate(done) if trial.params == baseline), default=None)
        ran = any(trial.params == baseline and trial.result is not None for trial in done)
        return last is not None and ran and len(done) - last > REFERENCE_EVERY
