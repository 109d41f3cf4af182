"""The worker's loop: what it does when its lease is another's, and when what it brings is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, PowerConfig
from energyopt.core.errors import ConfigError, EnergyoptError
from energyopt.core.leases import LeaseGoneError, WorkerFacts
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan, Origin, TrialOutcome
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.lease_worker import LeaseWorker
from tuner.ports import Evaluator, PowerController, Progress, ProgressSink
from tuner.source import Failure, LeasedTrial

FACTS = WorkerFacts(id="w", host="h", hardware="toy", devices=("GPU-1",))


class OneTrial:
    """A source of one trial; ``beaten`` and ``completed`` may raise. What it was told is in ``said``."""

    def __init__(self, beaten: Callable[[], None], completed: Callable[[], None] = lambda: None) -> None:
        self._beaten, self._completed, self.said = beaten, completed, list[str]()
        spec = toy_spec()
        self._trial = LeasedTrial(
            lease="1.1.a", ttl=Seconds(0.02), study="s", number=1, attempt=1, origin=Origin.SEARCH,
            deployment=spec.baseline, spec=spec, machine={},
        )  # fmt: skip

    def acquire(self, worker: WorkerFacts, wait: Seconds = Seconds(0.0)) -> LeasedTrial | None:
        return self._trial

    def beat(self, lease: str, stage: str, fraction: float) -> None:
        self._beaten()

    def complete(self, lease: str, result: RunResult) -> TrialOutcome:
        self._completed()
        self.said.append("complete")
        return TrialOutcome.FEASIBLE

    def fail(self, lease: str, failure: Failure) -> None:
        self.said.append(f"fail {failure.error}")

    def fault(self, lease: str, reason: str) -> None:
        self.said.append(f"fault {reason}")

    def release(self, lease: str) -> None:
        self.said.append("release")


class Bench:
    """Measures the toy machine after ``during`` was called with the sink of its progress."""

    def __init__(self, during: Callable[[ProgressSink], None] = lambda progress: None) -> None:
        self._during, self.power = during, FakePowerController()

    def tools(self, trial: LeasedTrial) -> tuple[Evaluator, PowerController]:
        return self, self.power

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        self._during(progress)
        return FakeEvaluator(FakeClock()).run(deployment, workload, plan, slos, progress)


def report_until(done: Callable[[], bool]) -> Callable[[ProgressSink], None]:
    def during(progress: ProgressSink) -> None:
        until = time.monotonic() + 20
        while not done() and time.monotonic() < until:
            progress(Progress("measuring", 0.5))
            time.sleep(0.001)

    return during


def test_who_has_lost_its_lease_measures_no_longer() -> None:
    """Its devices are another worker's, whose joules it would spoil."""

    def beaten() -> None:
        raise LeaseGoneError("ended")

    source, said = OneTrial(beaten), list[str]()
    bench = Bench(report_until(lambda: False))
    assert LeaseWorker(source, FACTS, bench, said.append).work_once()
    assert source.said == [], "nothing is told of a trial that is another's"
    assert "too late" in said[-1]
    assert bench.power.now == PowerConfig(), "and leaves no limit"


def test_one_sign_of_life_that_is_refused_is_not_the_last() -> None:
    beats, again = list[int](), threading.Event()

    def beaten() -> None:
        beats.append(1)
        if len(beats) == 1:
            raise ConfigError("not allowed")
        again.set()

    source = OneTrial(beaten)
    assert LeaseWorker(source, FACTS, Bench(report_until(again.is_set)), lambda line: None).work_once()
    assert again.is_set()
    assert source.said == ["complete"]


def test_a_result_that_is_refused_is_a_fault_and_the_worker_lives_on() -> None:
    def completed() -> None:
        raise ConfigError("verdicts are of nothing")

    source, said = OneTrial(lambda: None, completed), list[str]()
    worker = LeaseWorker(source, FACTS, Bench(), said.append)
    assert worker.work_once()
    assert worker.work_once()
    assert source.said == ["fault what was found is not taken: verdicts are of nothing"] * 2
    assert "to be tried again" in said[-1]


def test_a_refusal_to_give_a_trial_is_told_once_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    source, said = OneTrial(lambda: None), list[str]()

    def refuse(*_: object) -> None:
        raise ConfigError("The worker's id is taken")

    worker = LeaseWorker(source, FACTS, Bench(), said.append)
    with monkeypatch.context() as patch:
        patch.setattr(source, "acquire", refuse)
        assert not worker.work_once()
        assert not worker.work_once()
    assert said == ["waiting: The worker's id is taken"]
    assert worker.work_once()


def test_a_key_that_is_refused_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    source = OneTrial(lambda: None)

    def refuse(*_: object) -> None:
        raise EnergyoptError("the key was revoked")

    monkeypatch.setattr(source, "acquire", refuse)
    with pytest.raises(EnergyoptError, match="revoked"):
        LeaseWorker(source, FACTS, Bench(), lambda line: None).work_once()
