"""No false winner: over random outcomes of every run, what is recommended kept every SLO whenever it was measured."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.errors import CrashError, LaunchError, NoFeasibleError, OutOfMemoryError, TrialError
from energyopt.core.results import EnergyTotal, RunResult, Source, VerdictRecord
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan, Origin, StudyState, TrialOutcome, TrialRecord
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.core.workload import Workload
from energyopt.store.memory import MemoryStudyStore
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner
from tuner.ports import ProgressSink

SLO = "itl:p99<50ms"


class Lottery:
    """Every run is a draw: it fails, misses, has no joules, or is fine; even for the same configuration."""

    def __init__(self, seed: int, kindness: float) -> None:
        self._rng, self._kindness = random.Random(seed), kindness

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        if self._rng.random() > self._kindness:
            fate = self._rng.randrange(6)
            if fate < 4:
                raise (TrialError, OutOfMemoryError, LaunchError, CrashError)[fate](f"fate {fate}")
            return self._result(violation=0.2 if fate == 4 else None, failed=fate == 5)
        return self._result(violation=-0.1, failed=False)

    def _result(self, *, violation: float | None, failed: bool) -> RunResult:
        joules = EnergyTotal(joules=Joules(self._rng.uniform(10, 20)), error=Joules(0), sources=(Source.COUNTER,))
        verdict = VerdictRecord(
            slo=SLO, state="", estimate=None, bound=None, violation=violation, samples=1, confidence=0.95
        )
        return RunResult(
            window=Seconds(1.0),
            requests=5,
            failed_requests=int(failed),
            prompt_tokens=Tokens(1),
            cached_tokens=Tokens(0),
            output_tokens=Tokens(100),
            verdicts=(verdict,),
            energy=joules,
            power_valid=True,
        )


def missed(trial: TrialRecord) -> bool:
    return trial.outcome is not TrialOutcome.FEASIBLE


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), kindness=st.floats(0.0, 1.0), pairs=st.integers(0, 3), trials=st.integers(1, 8))
def test_only_what_kept_every_slo_is_recommended(seed: int, kindness: float, pairs: int, trials: int) -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(toy_spec(trials=trials, pairs=pairs, slos=(SLO,), seed=seed), {}).id
    runner = StudyRunner(store, Lottery(seed, kindness), FakePowerController(), clock, "me")
    try:
        study = runner.run(study_id)
    except NoFeasibleError:
        found = store.study(study_id)
        assert (found.state, found.recommendation) == (StudyState.NO_FEASIBLE, None)
        fresh = [t for t in store.trials(study_id) if t.origin.verifies]
        searched = [t for t in store.trials(study_id) if not t.origin.verifies]
        assert all(map(missed, searched)) or any(map(missed, fresh))
        return
    recommendation, all_trials = study.recommendation, store.trials(study_id)
    assert recommendation is not None
    winner = all_trials[recommendation.trial]
    assert not missed(winner)
    role = Origin.VERIFY_BASELINE if winner.origin is Origin.BASELINE else Origin.VERIFY_WINNER
    fresh = [t for t in all_trials if t.origin is role and t.params == winner.params]
    assert not any(map(missed, fresh))
    assert bool(fresh) == (pairs > 0)
    if recommendation.verified:
        assert recommendation.saving_low is not None
        assert recommendation.saving_low > 0
        assert recommendation.pairs >= 2


class ShortContext(Lottery):
    """Never fails; whatever is not the baseline is worth more, and cuts a third of the conversations that it serves."""

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        result = self._result(violation=-0.1, failed=False)
        if deployment == toy_spec().baseline:
            return result
        return result.model_copy(update={"output_tokens": Tokens(1000), "cut_requests": 5})


def test_a_context_too_short_for_what_the_baseline_serves_never_wins() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study = store.create_study(toy_spec(trials=6, pairs=1).model_copy(update={"slos": (SLO,)}), {})
    done = StudyRunner(store, ShortContext(0, 1.0), FakePowerController(), clock, "test").run(study.id)
    trials = store.trials(study.id)
    assert done.recommendation is not None
    assert trials[done.recommendation.trial].origin is Origin.BASELINE
    assert {one.outcome for one in trials if one.origin is Origin.SEARCH} == {TrialOutcome.INFEASIBLE}
