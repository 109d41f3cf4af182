"""What to tell someone whose SLO nothing keeps: which trial came closest, and what it misses by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from energyopt.core.results import RunResult
from energyopt.core.study import TrialRecord, TrialState

from .verify import kept


def explain_infeasible(trials: Sequence[TrialRecord]) -> str:
    """One sentence for NoFeasibleError."""
    done = [trial for trial in trials if trial.state is TrialState.DONE and not trial.origin.verifies]
    if any(kept(trial) for trial in done):
        return (
            "No configuration that kept the SLOs in the search kept them again on fresh prompts, the baseline included."
        )
    ran = [(trial.number, trial.result) for trial in done if trial.result is not None]
    failed = len(done) - len(ran)
    tail = f"; {failed} of {len(done)} did not fit, start or survive" if failed else ""
    if not ran:
        last = next((trial.error for trial in reversed(done) if trial.error), None)
        return f"None of {len(done)} configurations ran{': ' + last.removesuffix('.') if last else ''}."
    number, result = min(ran, key=lambda item: _distance(item[1]))
    return f"No configuration keeps the SLOs: the nearest, trial {number}, {_misses(result)}{tail}."


def _distance(result: RunResult) -> float:
    """The worst relative violation; a run with failed requests or without a verdict is farthest."""
    if result.failed_requests or not result.requests:
        return math.inf
    return max((math.inf if v.violation is None else v.violation for v in result.verdicts), default=math.inf)


def _misses(result: RunResult) -> str:
    missed = [
        f"{verdict.slo} ({'unknown' if verdict.violation is None else f'by {verdict.violation:.0%}'})"
        for verdict in result.verdicts
        if verdict.violation is None or verdict.violation > 0
    ]
    if result.failed_requests:
        missed.append(f"{result.failed_requests} of {result.requests} requests, which failed")
    return f"misses {', '.join(missed)}" if missed else "finished no request"
