"""The accuracy gate in a study: a winner with worse answers is refused, whatever it saves."""

from __future__ import annotations

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.study import StudyRecord, StudyState
from energyopt.store.memory import MemoryStudyStore
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner


class Gate:
    """Refuses whatever ``bad`` says."""

    def __init__(self, *, refuses_all: bool = False, first: int = 0) -> None:
        self.asked: list[Deployment] = []
        self._all, self._first = refuses_all, first

    def refuses(self, candidate: Deployment) -> str | None:
        self.asked.append(candidate)
        return "wrong answers" if self._all or len(self.asked) <= self._first else None


def study(gate: Gate | None) -> tuple[StudyRecord, MemoryStudyStore]:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    created = store.create_study(toy_spec(trials=8, pairs=2), {})
    return StudyRunner(store, FakeEvaluator(clock), FakePowerController(), clock, "me", gate=gate).run(
        created.id
    ), store


def deployment_of(found: StudyRecord, store: MemoryStudyStore) -> Deployment:
    assert found.recommendation is not None
    number = found.recommendation.trial
    return next(trial.deployment for trial in store.trials(found.id) if trial.number == number)


def test_a_gate_that_passes_changes_nothing() -> None:
    gate = Gate()
    with_gate, store = study(gate)
    without, other = study(None)
    assert deployment_of(with_gate, store) == deployment_of(without, other)
    assert gate.asked == [deployment_of(with_gate, store)]


def test_a_refused_winner_gives_way_to_the_next() -> None:
    gate = Gate(first=1)
    found, store = study(gate)
    assert deployment_of(found, store) != gate.asked[0]
    kinds = [(event.kind, event.data.get("passed")) for event in store.events(found.id)]
    assert ("accuracy_checked", False) in kinds
    assert any(event.data.get("reason") == "wrong answers" for event in store.events(found.id))


def test_without_an_accurate_challenger_the_baseline_stays() -> None:
    gate = Gate(refuses_all=True)
    found, store = study(gate)
    assert found.state is StudyState.SUCCEEDED
    assert deployment_of(found, store) == found.spec.baseline
    assert found.spec.baseline not in gate.asked, "the baseline is not compared with itself"
