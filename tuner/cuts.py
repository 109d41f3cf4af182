"""Conversations that outgrew the context, and when that is the configuration's fault.

A replay ends such a conversation and goes on with the next, which is right where the model's own context is the limit.
But a configuration with a smaller context or pool than the baseline would serve short first turns only, and look better
for it. So what is cut beyond what the baseline cuts has failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from energyopt.core.results import RunResult
from energyopt.core.study import Origin, TrialOutcome, TrialRecord, TrialState

SIGMAS = 3.0
"""Standard errors by which two shares of one workload may differ by chance of their windows."""


def judged_by_baseline(result: RunResult, trial: TrialRecord, trials: Sequence[TrialRecord]) -> RunResult:
    """``result`` of ``trial``, with the requests that it cut and the baseline would have served among its failed ones.

    ``trials`` are those of the study. A baseline that cut nothing, or did not run, serves everything; while it has not
    ended nobody is judged, and what it cuts itself stays as it is. Judged twice, a result is the same.
    """
    if not result.cut_requests:
        return result
    baseline = next((one for one in trials if one.origin is Origin.BASELINE), None)
    if baseline is not None and (baseline.state is not TrialState.DONE or baseline.params == trial.params):
        return result
    theirs = [one.result for one in trials if baseline is not None and one.params == baseline.params and one.result]
    excess = max(0, result.cut_requests - _expected(theirs, asked_of(result)))
    update = {
        "requests": result.requests + excess,
        "failed_requests": result.failed_requests + excess,
        "cut_requests": result.cut_requests - excess,
    }
    return result.model_copy(update=update)


def judged(trial: TrialRecord, trials: Sequence[TrialRecord]) -> TrialRecord:
    """The record with its result judged. One that was stored before its baseline had ended is judged when read."""
    if trial.result is None:
        return trial
    result = judged_by_baseline(trial.result, trial, trials)
    if result is trial.result:
        return trial
    outcome = trial.outcome if result.feasible else TrialOutcome.INFEASIBLE
    return trial.model_copy(update={"result": result, "outcome": outcome})


def asked_of(result: RunResult) -> int:
    """Requests of the window, those that were cut too."""
    return result.requests + result.cut_requests


def _expected(baseline: Sequence[RunResult], asked: int) -> int:
    """The most of ``asked`` requests that the baseline might have cut, by its own share and what chance adds to it."""
    cut, among = sum(one.cut_requests for one in baseline), sum(map(asked_of, baseline))
    if not cut:
        return 0
    share = cut / among
    return math.floor(asked * share + SIGMAS * asked * math.sqrt(share * (1 - share) * (1 / among + 1 / asked)))
