"""Recorded results as an Evaluator: a study is run again over what another one measured, without any machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from energyopt.core.config import Deployment
from energyopt.core.errors import CrashError, LaunchError, OutOfMemoryError, TrialError, TrialTimeoutError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan, TrialRecord, TrialState
from energyopt.core.workload import Workload

from ..objective import outcome_of
from ..ports import Progress, ProgressSink


class RecordedEvaluator:
    """Gives each configuration its recorded runs, in their order and from the start again; failures fail again.

    A configuration that was never measured did not start: nothing is made up.
    """

    def __init__(self, trials: Iterable[TrialRecord]) -> None:
        self._runs: dict[str, list[TrialRecord]] = {}
        self._place: dict[str, int] = {}
        for trial in trials:
            if trial.state is TrialState.DONE:
                self._runs.setdefault(trial.deployment.digest(), []).append(trial)

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        """The next recorded run. Raises the TrialError that was recorded, LaunchError for an unknown configuration."""
        progress(Progress("launching", 0.0))
        digest = deployment.digest()
        runs = self._runs.get(digest)
        if not runs:
            raise LaunchError("This configuration was never measured in the recorded study.")
        place = self._place.get(digest, 0)
        self._place[digest] = place + 1
        trial = runs[place % len(runs)]
        if trial.result is None:
            raise _error_of(trial)
        progress(Progress("done", 1.0))
        return trial.result


def _error_of(trial: TrialRecord) -> TrialError:
    """The error whose outcome was recorded."""
    words = trial.error or "the recorded trial failed"
    errors = [kind(words) for kind in (OutOfMemoryError, LaunchError, CrashError, TrialTimeoutError)]
    return next((error for error in errors if outcome_of(error) is trial.outcome), TrialError(words))
