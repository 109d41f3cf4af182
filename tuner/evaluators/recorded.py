"""Recorded results as an Evaluator: a study is run again over what another one measured, without any machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, CrashError, LaunchError, OutOfMemoryError, TrialError, TrialTimeoutError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan, StudyRecord, StudySpec, TrialRecord, TrialState
from energyopt.core.study_store import StudyStore
from energyopt.core.workload import Workload

from ..objective import outcome_of
from ..ports import Progress, ProgressSink
from .choice import EVALUATOR_KEY, EvaluatorChoice, evaluator_choice


def recorded_study(store: StudyStore, choice: EvaluatorChoice) -> StudyRecord:
    """The study that a replay gives again. Raises NotFoundError, ConfigError where that was a replay itself."""
    found = store.study(choice.study or "")
    if evaluator_choice(found.machine).kind == "replay":
        raise ConfigError(
            f"Study {found.id} ({choice.study}) is a replay itself: name the study whose trials were measured."
        )
    return found


def pinned(store: StudyStore, machine: Mapping[str, str]) -> dict[str, str]:
    """The facts of a study about to be made: what it replays is named by its whole id.

    "latest", or the beginning of an id, is another study tomorrow. Raises as ``recorded_study`` does.
    """
    choice = evaluator_choice(machine)
    if choice.kind != "replay":
        return dict(machine)
    whole = choice.model_copy(update={"study": recorded_study(store, choice).id})
    return {**machine, EVALUATOR_KEY: whole.model_dump_json(exclude_defaults=True)}


class RecordedEvaluator:
    """Gives each configuration its recorded runs, in their order and from the start again; failures fail again.

    ``spec`` is that of the study that recorded ``trials``: other questions have no answer here. A configuration that
    was never measured did not start: nothing is made up. One that was measured under the other of the study's two
    loads only (it was searched, not verified) gives those runs.
    """

    def __init__(self, spec: StudySpec, trials: Iterable[TrialRecord]) -> None:
        self._spec = spec
        self._runs: dict[tuple[str, bool], list[TrialRecord]] = {}
        self._place: Counter[tuple[str, bool]] = Counter()
        for trial in trials:
            if trial.state is TrialState.DONE:
                self._runs.setdefault((trial.deployment.digest(), trial.origin.verifies), []).append(trial)

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        """The next recorded run, marked as replayed.

        Raises the TrialError that was recorded, LaunchError for an unknown configuration, ConfigError for another
        load, plan or objective than was recorded.
        """
        self._check(workload, plan, slos)
        progress(Progress("launching", 0.0))
        digest, verifies = deployment.digest(), workload == self._spec.verify_workload
        key = next((key for key in ((digest, verifies), (digest, not verifies)) if key in self._runs), None)
        if key is None:
            raise LaunchError("This configuration was never measured in the recorded study.")
        runs = self._runs[key]
        trial = runs[self._place[key] % len(runs)]
        self._place[key] += 1
        if trial.result is None:
            raise _error_of(trial)
        progress(Progress("done", 1.0))
        return trial.result.model_copy(update={"replayed": True})

    def _check(self, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo]) -> None:
        spec = self._spec
        asked = {
            "workload": workload in (spec.workload, spec.verify_workload),
            "measure": plan == spec.plan,
            "slos": sorted(map(str, slos)) == sorted(str(Slo.parse(text)) for text in spec.slos),
        }
        other = next((name for name, same in asked.items() if not same), None)
        if other is not None:
            raise ConfigError(
                f"{other} differs from what was recorded: a replay answers the recorded study's questions."
            )


def _error_of(trial: TrialRecord) -> TrialError:
    """The error whose outcome was recorded."""
    words = trial.error or "the recorded trial failed"
    errors = [kind(words) for kind in (OutOfMemoryError, LaunchError, CrashError, TrialTimeoutError)]
    return next((error for error in errors if outcome_of(error) is trial.outcome), TrialError(words))
