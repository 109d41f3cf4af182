"""The study loop from the outside: what is stored, what is recommended, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, CrashError, NoFeasibleError, TrialError
from energyopt.core.results import EnergyTotal, RunResult, Source, VerdictRecord
from energyopt.core.slo import Slo
from energyopt.core.study import (
    Budget,
    Knob,
    MeasurePlan,
    Origin,
    Space,
    StudyRecord,
    StudySpec,
    StudyState,
    TrialOutcome,
    TrialState,
)
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.core.workload import Workload
from energyopt.store.memory import MemoryStudyStore
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import PATIENCE, StudyRunner
from tuner.ports import Evaluator, Progress, ProgressSink
from tuner.progress import StudyProgress

SEQS = "decode.engine.max_num_seqs"
ONE_KNOB = Space(knobs=(Knob(path=SEQS, values=(8, 16, 32, 64)),))


def result(tokens_per_joule: float, violation: float = -0.5) -> RunResult:
    """A run of the study's only SLO."""
    return RunResult(
        window=Seconds(10.0),
        requests=10,
        failed_requests=0,
        prompt_tokens=Tokens(10),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1000),
        verdicts=(
            VerdictRecord(
                slo="ttft:p90<1000ms",
                state="",
                estimate=1 + violation,
                bound=None,
                violation=violation,
                samples=10,
                confidence=0.95,
            ),
        ),
        energy=EnergyTotal(joules=Joules(1000 / tokens_per_joule), error=Joules(0), sources=(Source.COUNTER,)),
        power_valid=True,
    )


Answer = RunResult | BaseException
Script = Callable[[int, Workload], Answer]
"""From max_num_seqs and the workload to what the evaluator does."""


@dataclass
class ScriptedEvaluator:
    """Answers by script, ten seconds a run; ``calls`` are (max_num_seqs, workload seed)."""

    clock: FakeClock
    script: Script
    calls: list[tuple[int, int]] = field(default_factory=list)

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        seqs = deployment.decode.engine.max_num_seqs
        self.calls.append((seqs, workload.seed))
        progress(Progress("measuring", 0.5))
        self.clock.sleep(Seconds(10.0))
        answer = self.script(seqs, workload)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Bench:
    """A store, a clock and runners over them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStudyStore(self.clock)
        self.power = FakePowerController()
        self.progress: list[StudyProgress] = []
        self._runs = 0

    def create(self, spec: StudySpec) -> str:
        return self.store.create_study(spec, {}).id

    def run(self, study_id: str, evaluator: Evaluator) -> StudyRecord:
        self._runs += 1
        runner = StudyRunner(self.store, evaluator, self.power, self.clock, f"owner-{self._runs}", self.progress.append)
        return runner.run(study_id)

    def scripted(self, script: Script) -> ScriptedEvaluator:
        return ScriptedEvaluator(self.clock, script)

    def outcomes(self, study_id: str) -> dict[Origin, list[TrialOutcome | None]]:
        found: dict[Origin, list[TrialOutcome | None]] = {}
        for trial in self.store.trials(study_id):
            found.setdefault(trial.origin, []).append(trial.outcome)
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def one_knob(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {"space": ONE_KNOB, "slos": ("ttft:p90<1s",)}
    return toy_spec(**(fields | changes))


def by_seqs(**values: Answer) -> Script:
    """``s8=...`` for each number of sequences, on any workload."""
    return lambda seqs, workload: values[f"s{seqs}"]


GOOD = by_seqs(s64=result(4.0), s32=result(5.0), s16=result(3.0), s8=result(2.0))


def test_a_study_ends_with_a_verified_winner(bench: Bench) -> None:
    study_id = bench.create(toy_spec(trials=10, pairs=3))
    study = bench.run(study_id, FakeEvaluator(bench.clock))
    trials = bench.store.trials(study_id)
    assert study.state is StudyState.SUCCEEDED
    assert study.owner is None
    assert trials[0].origin is Origin.BASELINE
    assert trials[0].deployment == study.spec.baseline
    assert [trial.origin for trial in trials[1:10]] == [Origin.SEARCH] * 9
    assert all(trial.state is TrialState.DONE and trial.attempts == 1 for trial in trials)
    assert study.recommendation is not None
    assert trials[study.recommendation.trial].outcome is TrialOutcome.FEASIBLE
    assert study.recommendation.pairs == 3


def test_the_best_feasible_wins_and_its_saving_is_that_of_the_pairs(bench: Bench) -> None:
    study_id = bench.create(one_knob(trials=4, pairs=3))
    recommendation = bench.run(study_id, bench.scripted(GOOD)).recommendation
    assert recommendation is not None
    assert bench.store.trials(study_id)[recommendation.trial].params == {SEQS: 32}
    assert recommendation.verified
    assert recommendation.saving == pytest.approx(0.2)
    assert recommendation.saving_low == pytest.approx(0.2)


@pytest.mark.parametrize(("mark", "word"), [("simulated", "Simulated"), ("replayed", "Replayed")])
def test_pairs_that_no_hardware_made_verify_nothing(bench: Bench, mark: str, word: str) -> None:
    def marked(seqs: int, workload: Workload) -> Answer:
        found = GOOD(seqs, workload)
        return found.model_copy(update={mark: True}) if isinstance(found, RunResult) else found

    recommendation = bench.run(bench.create(one_knob(trials=4, pairs=3)), bench.scripted(marked)).recommendation
    assert recommendation is not None
    assert not recommendation.verified
    assert recommendation.note.startswith(f"{word}, not verified")
    assert recommendation.saving == pytest.approx(0.2)
    assert (recommendation.saving_low, recommendation.saving_high) == (None, None)


def test_the_pairs_are_those_behind_the_interval(bench: Bench) -> None:
    """A pair without joules on one side says nothing of the saving, and is not counted as if it did."""
    verified: list[int] = []

    def script(seqs: int, workload: Workload) -> Answer:
        found = GOOD(seqs, workload)
        if workload.seed == 1 and isinstance(found, RunResult):
            verified.append(1)
            return found.model_copy(update={"power_valid": len(verified) > 1})
        return found

    recommendation = bench.run(bench.create(one_knob(trials=4, pairs=3)), bench.scripted(script)).recommendation
    assert recommendation is not None
    assert recommendation.pairs == 2


def test_verification_interleaves_on_fresh_prompts(bench: Bench) -> None:
    evaluator = bench.scripted(GOOD)
    bench.run(bench.create(one_knob(trials=4, pairs=3)), evaluator)
    assert [seed for _, seed in evaluator.calls] == [0] * 4 + [1] * 6
    assert [seqs for seqs, _ in evaluator.calls[4:]] == [32, 64, 64, 32, 32, 64]


def test_an_infeasible_configuration_never_wins_however_good(bench: Bench) -> None:
    script = by_seqs(s64=result(4.0), s32=result(99.0, violation=0.01), s16=result(4.5), s8=CrashError("gone"))
    study_id = bench.create(one_knob(trials=4))
    recommendation = bench.run(study_id, bench.scripted(script)).recommendation
    assert recommendation is not None
    assert bench.store.trials(study_id)[recommendation.trial].params == {SEQS: 16}


def test_a_trial_error_is_a_result_and_the_study_goes_on(bench: Bench) -> None:
    script = by_seqs(s64=result(4.0), s32=TrialError("odd"), s16=CrashError("The process died."), s8=result(5.0))
    study_id = bench.create(one_knob(trials=4))
    assert bench.run(study_id, bench.scripted(script)).state is StudyState.SUCCEEDED
    crashed = next(t for t in bench.store.trials(study_id) if t.params == {SEQS: 16})
    assert (crashed.outcome, crashed.error, crashed.result) == (TrialOutcome.CRASHED, "The process died.", None)


def test_a_baseline_that_crashes_leaves_the_search_to_find_something(bench: Bench) -> None:
    script = by_seqs(s64=CrashError("gone"), s32=result(5.0), s16=result(3.0), s8=result(2.0))
    study_id = bench.create(one_knob(trials=4))
    recommendation = bench.run(study_id, bench.scripted(script)).recommendation
    assert recommendation is not None
    assert bench.store.trials(study_id)[recommendation.trial].params == {SEQS: 32}
    assert recommendation.saving is None
    assert not recommendation.verified
    assert "does not run" in recommendation.note


def test_the_search_ends_when_every_point_was_measured(bench: Bench) -> None:
    evaluator = bench.scripted(GOOD)
    bench.run(bench.create(one_knob(trials=50, pairs=0)), evaluator)
    assert sorted(seqs for seqs, _ in evaluator.calls) == [8, 16, 32, 64]
    assert bench.progress[-1].total == 4


def test_no_trial_starts_that_cannot_end_in_time(bench: Bench) -> None:
    evaluator = bench.scripted(GOOD)
    bench.run(bench.create(one_knob(budget=Budget(trials=4, seconds=Seconds(39.0), verify_pairs=0))), evaluator)
    assert len(evaluator.calls) == 3
    assert bench.clock.now() == 30.0


def test_the_search_leaves_time_for_the_verification(bench: Bench) -> None:
    evaluator = bench.scripted(GOOD)
    study_id = bench.create(one_knob(budget=Budget(trials=4, seconds=Seconds(65.0), verify_pairs=2)))
    bench.run(study_id, evaluator)
    searched = [trial for trial in bench.store.trials(study_id) if not trial.origin.verifies]
    assert len(searched) == 2  # 20 s; a third would leave less than the 40 s of two pairs
    assert bench.clock.now() <= 65.0


def test_out_of_time_no_further_challenger_is_measured(bench: Bench) -> None:
    fresh = one_knob().verify_workload.seed

    def fades(seqs: int, workload: Workload) -> Answer:
        searched = {64: 4.0, 32: 5.0, 16: 4.5, 8: 2.0}[seqs]
        return result(3.0 if workload.seed == fresh and seqs != 64 else searched)

    def challengers(budget: Budget) -> list[int]:
        evaluator = bench.scripted(fades)
        found = bench.run(bench.create(one_knob(budget=budget)), evaluator).recommendation
        assert found is not None
        assert found.trial == 0
        return [seqs for seqs, seed in evaluator.calls if seed == fresh and seqs != 64]

    assert challengers(Budget(trials=4, verify_pairs=1)) == [32, 16]
    assert challengers(Budget(trials=4, seconds=Seconds(60.0), verify_pairs=1)) == [32]


def test_the_baseline_is_measured_even_without_time(bench: Bench) -> None:
    study_id = bench.create(one_knob(budget=Budget(trials=4, seconds=Seconds(1.0), verify_pairs=0)))
    assert bench.run(study_id, bench.scripted(GOOD)).recommendation is not None
    assert len(bench.store.trials(study_id)) == 1


def test_time_spent_before_a_restart_counts_but_not_the_time_between(bench: Bench) -> None:
    study_id = bench.create(one_knob(budget=Budget(trials=4, seconds=Seconds(39.0), verify_pairs=0)))
    stopping = bench.scripted(lambda seqs, _: KeyboardInterrupt() if bench.clock.now() > 15 else GOOD(seqs, _))
    with pytest.raises(KeyboardInterrupt):
        bench.run(study_id, stopping)
    bench.clock.advance(3600)
    evaluator = bench.scripted(GOOD)
    bench.run(study_id, evaluator)
    assert len(evaluator.calls) == 2  # 10 s were spent on the baseline; the interrupted trial and one more fit


def test_nothing_feasible_is_an_outcome_of_its_own_with_the_nearest_miss(bench: Bench) -> None:
    script = by_seqs(
        s64=result(4.0, violation=0.8), s32=result(5.0, violation=0.12), s16=CrashError("gone"), s8=result(9.0, 3.0)
    )
    study_id = bench.create(one_knob(trials=4))
    evaluator = bench.scripted(script)
    nearest = r"nearest, trial \d, misses ttft:p90<1000ms \(by 12%\); 1 of 4 did not fit"
    with pytest.raises(NoFeasibleError, match=nearest):
        bench.run(study_id, evaluator)
    study = bench.store.study(study_id)
    assert (study.state, study.recommendation, study.owner) == (StudyState.NO_FEASIBLE, None, None)
    with pytest.raises(NoFeasibleError, match="by 12%"):
        bench.run(study_id, evaluator)
    assert len(evaluator.calls) == 4


def test_nothing_that_runs_says_why(bench: Bench) -> None:
    study_id = bench.create(one_knob(trials=2))
    with pytest.raises(NoFeasibleError, match=r"None of 2 configurations ran: no model"):
        bench.run(study_id, bench.scripted(lambda *_: CrashError("no model.")))


def test_without_joules_the_study_fails_after_a_few_trials_and_says_what_to_do(bench: Bench) -> None:
    study_id = bench.create(toy_spec())
    evaluator = FakeEvaluator(bench.clock, metered=False)
    with pytest.raises(ConfigError, match=r"no meter\): maximize output_rate"):
        bench.run(study_id, evaluator)
    measured = [trial for trial in bench.store.trials(study_id) if trial.result is not None]
    assert len(measured) == PATIENCE
    study = bench.store.study(study_id)
    assert study.state is StudyState.FAILED
    assert study.error is not None
    assert "output_rate" in study.error


def test_without_joules_the_rate_can_be_maximised_and_no_saving_is_claimed(bench: Bench) -> None:
    study = bench.run(bench.create(toy_spec(maximize="output_rate")), FakeEvaluator(bench.clock, metered=False))
    assert study.recommendation is not None
    assert study.recommendation.saving is None


def test_one_reading_lost_later_is_no_reason_to_stop(bench: Bench) -> None:
    blind = result(5.0).model_copy(update={"power_valid": False})
    script = by_seqs(s64=result(4.0), s32=blind, s16=result(4.5), s8=result(2.0))
    study_id = bench.create(one_knob(trials=4))
    recommendation = bench.run(study_id, bench.scripted(script)).recommendation
    assert recommendation is not None
    assert bench.store.trials(study_id)[recommendation.trial].params == {SEQS: 16}


def test_the_baseline_may_win_and_is_only_checked(bench: Bench) -> None:
    evaluator = bench.scripted(by_seqs(s64=result(9.0), s32=result(5.0), s16=result(3.0), s8=result(2.0)))
    recommendation = bench.run(bench.create(one_knob(trials=4)), evaluator).recommendation
    assert recommendation is not None
    assert (recommendation.trial, recommendation.verified, recommendation.saving) == (0, False, None)
    assert "baseline is the best" in recommendation.note
    assert evaluator.calls[4:] == [(64, 1)]


def on_fresh(search: Script, **fresh: Answer) -> Script:
    """``search`` on the search workload, ``fresh`` on the verification's where given."""
    return lambda seqs, workload: (
        fresh[f"s{seqs}"] if workload.seed == 1 and f"s{seqs}" in fresh else search(seqs, workload)
    )


RISING = by_seqs(s64=result(4.0), s32=result(7.0), s16=result(6.0), s8=result(5.0))


@pytest.mark.parametrize("fresh", [result(7.0, violation=0.1), CrashError("gone")])
def test_a_winner_that_misses_on_fresh_prompts_gives_way_to_the_next(bench: Bench, fresh: Answer) -> None:
    study_id = bench.create(one_knob(trials=4))
    evaluator = bench.scripted(on_fresh(RISING, s32=fresh))
    recommendation = bench.run(study_id, evaluator).recommendation
    assert recommendation is not None
    assert bench.store.trials(study_id)[recommendation.trial].params == {SEQS: 16}
    assert evaluator.calls[4:6] == [(32, 1), (16, 1)]  # dropped at once
    assert {t.pair for t in bench.store.trials(study_id) if t.params == {SEQS: 16} and t.pair is not None} == {3, 4, 5}


def test_if_no_candidate_holds_the_baseline_is_kept(bench: Bench) -> None:
    miss = result(7.0, violation=0.1)
    evaluator = bench.scripted(on_fresh(RISING, s32=miss, s16=miss, s8=miss))
    recommendation = bench.run(bench.create(one_knob(trials=4)), evaluator).recommendation
    assert recommendation is not None
    assert (recommendation.trial, recommendation.verified) == (0, False)


def test_if_the_baseline_does_not_hold_either_nothing_is_recommended(bench: Bench) -> None:
    study_id = bench.create(one_knob(trials=4))
    with pytest.raises(NoFeasibleError, match="kept them again on fresh prompts"):
        bench.run(
            study_id, bench.scripted(on_fresh(RISING, **dict.fromkeys(["s64", "s32", "s16", "s8"], result(7, 0.1))))
        )
    assert bench.store.study(study_id).state is StudyState.NO_FEASIBLE


def test_a_winner_that_saves_nothing_on_fresh_prompts_is_not_recommended(bench: Bench) -> None:
    losing = dict.fromkeys(["s32", "s16", "s8"], result(3.9))
    recommendation = bench.run(
        bench.create(one_knob(trials=4)), bench.scripted(on_fresh(RISING, **losing))
    ).recommendation
    assert recommendation is not None
    assert recommendation.trial == 0


def test_a_gain_within_the_noise_is_recommended_but_not_verified(bench: Bench) -> None:
    wobble = iter([result(9.0), result(3.5), result(6.0)])

    def script(seqs: int, workload: Workload) -> Answer:
        return next(wobble) if (seqs, workload.seed) == (32, 1) else RISING(seqs, workload)

    recommendation = bench.run(bench.create(one_knob(trials=4)), bench.scripted(script)).recommendation
    assert recommendation is not None
    assert not recommendation.verified
    assert recommendation.saving_low is not None
    assert recommendation.saving_low < 0 < (recommendation.saving or 0)
    assert "within the noise" in recommendation.note


def test_zero_pairs_recommend_unverified(bench: Bench) -> None:
    evaluator = bench.scripted(RISING)
    recommendation = bench.run(bench.create(one_knob(trials=4, pairs=0)), evaluator).recommendation
    assert recommendation is not None
    assert (recommendation.verified, recommendation.pairs) == (False, 0)
    assert len(evaluator.calls) == 4


def test_power_is_applied_for_each_trial_and_put_back(bench: Bench) -> None:
    space = Space(knobs=(Knob(path="decode.power.cap", values=(150.0, 200.0, None)),))
    bench.run(bench.create(toy_spec(trials=3, pairs=0, space=space)), FakeEvaluator(bench.clock))
    assert bench.power.history[0].cap is None
    assert {power.cap for power in bench.power.history} == {None, 150.0, 200.0}
    assert bench.power.now.cap is None


def test_a_trial_queued_by_a_person_is_run_and_may_win(bench: Bench) -> None:
    study_id = bench.create(one_knob(trials=2, pairs=1))
    spec = bench.store.study(study_id).spec
    engine = spec.baseline.decode.engine.model_copy(update={"max_num_seqs": 32})
    wanted = spec.baseline.model_copy(update={"decode": spec.baseline.decode.model_copy(update={"engine": engine})})
    bench.store.add_trial(study_id, {SEQS: 64}, spec.baseline, Origin.BASELINE)
    bench.store.add_trial(study_id, {SEQS: 32}, wanted, Origin.USER)
    recommendation = bench.run(study_id, bench.scripted(GOOD)).recommendation
    assert recommendation is not None
    assert recommendation.trial == 1


def test_progress_counts_up_to_its_total_and_knows_best_and_eta(bench: Bench) -> None:
    bench.run(bench.create(one_knob(trials=4, pairs=3)), bench.scripted(GOOD))
    assert [p.done for p in bench.progress] == sorted(p.done for p in bench.progress)
    assert (bench.progress[-1].done, bench.progress[-1].total) == (10, 10)
    assert bench.progress[0].eta is None
    assert "trial 0: feasible, 4 tokens/J" in [p.message for p in bench.progress]
    assert bench.progress[-1].best == pytest.approx(5.0)
    assert bench.progress[-1].eta == Seconds(0.0)
    started = [p for p in bench.progress if p.stage == "launching"]
    assert [p.trial for p in started] == list(range(10))
    assert started[1].eta == pytest.approx(90.0)


def test_events_tell_the_story(bench: Bench) -> None:
    study_id = bench.create(one_knob(trials=2, pairs=1))
    bench.run(study_id, bench.scripted(GOOD))
    kinds = [event.kind for event in bench.store.events(study_id)]
    assert kinds[:2] == ["state", "search_started"]
    assert kinds.count("trial_started") == kinds.count("trial_finished") == len(bench.store.trials(study_id))
    assert kinds[-1] == "study_finished"
    assert bench.store.events(study_id)[1].data["sampler"] == "random"
    states = [event.data["state"] for event in bench.store.events(study_id) if event.kind == "state"]
    assert states == ["running", "verifying"]


def test_the_search_ends_with_its_joules_and_leaves_those_of_the_verification(bench: Bench) -> None:
    """GOOD costs 200 to 500 J a run."""
    budget = Budget(trials=4, verify_pairs=1, joules=Joules(1000.0))
    study_id = bench.create(one_knob(budget=budget))
    bench.run(study_id, bench.scripted(GOOD))
    spent = [trial.result.joules or 0.0 for trial in bench.store.trials(study_id) if trial.result]
    assert len([trial for trial in bench.store.trials(study_id) if not trial.origin.verifies]) < 4
    assert sum(spent) <= 1000.0


class Hiccup:
    """An evaluator whose first run loses its joules, as a starved machine does."""

    def __init__(self, clock: FakeClock) -> None:
        self._blind, self._seeing = FakeEvaluator(clock, metered=False), FakeEvaluator(clock)

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        evaluator = self._seeing if self._blind.runs else self._blind
        return evaluator.run(deployment, workload, plan, slos, progress)


def test_one_run_without_joules_does_not_end_the_study(bench: Bench) -> None:
    study_id = bench.create(toy_spec())
    assert bench.run(study_id, Hiccup(bench.clock)).state is StudyState.SUCCEEDED
    assert bench.store.trials(study_id)[0].result is not None
