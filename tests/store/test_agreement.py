"""Whatever is done in whatever order, the store in SQL says what the store in memory says."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pydantic import BaseModel

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import EnergyoptError
from energyopt.core.results import (
    EnergyReading,
    EnergySplit,
    LatencySummary,
    RunResult,
    Scope,
    Source,
    VerdictRecord,
    total_energy,
)
from energyopt.core.study import (
    Artifact,
    Budget,
    Knob,
    Origin,
    Recommendation,
    Space,
    StudySpec,
    StudyState,
    TrialOutcome,
    Value,
)
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds
from energyopt.core.workload import Session, Turn, Workload
from energyopt.store.database import open_store
from energyopt.store.memory import MemoryStudyStore

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(1e-9, 1e9)
AMOUNTS = st.floats(0, 1e12) | st.just(math.inf)
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
GOOD_TEXT = st.text(max_size=8)
COUNTS = st.integers(0, 10**6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.dictionaries(TEXT, SCALARS, max_size=3)
# Few names, so that steps meet each other; the last of each does not exist unless it was made.
OWNERS = st.sampled_from(["a", "b\0"])
STUDIES = st.sampled_from([0, 0, 0, 0, 0, 1])
NUMBERS = st.sampled_from([0, 0, 0, 1, 1, 2, -1])
READINGS = st.lists(
    st.builds(
        EnergyReading,
        device=GOOD_TEXT,
        joules=AMOUNTS,
        error=AMOUNTS,
        scope=st.sampled_from(Scope),
        source=st.sampled_from(Source),
        window=AMOUNTS,
    ),
    max_size=2,
).map(tuple)
LATENCIES = st.builds(LatencySummary, samples=COUNTS, mean=AMOUNTS, p50=AMOUNTS, p90=AMOUNTS, p95=AMOUNTS, p99=AMOUNTS)
VERDICTS = st.builds(
    VerdictRecord,
    slo=GOOD_TEXT,
    state=GOOD_TEXT,
    estimate=st.none() | AMOUNTS,
    bound=st.none() | AMOUNTS,
    violation=st.none() | st.floats(allow_nan=False),
    samples=COUNTS,
    confidence=st.just(0.95),
    note=GOOD_TEXT,
)
RESULTS = st.builds(
    RunResult,
    window=POSITIVE,
    requests=COUNTS,
    failed_requests=COUNTS,
    prompt_tokens=COUNTS,
    cached_tokens=COUNTS,
    output_tokens=COUNTS,
    latencies=st.dictionaries(st.sampled_from(["ttft", "itl"]), LATENCIES),
    verdicts=st.lists(VERDICTS, max_size=2).map(tuple),
    energy=READINGS.map(total_energy),
    readings=READINGS,
    split=st.none() | st.builds(EnergySplit, prefill=AMOUNTS, decode=AMOUNTS, idle=AMOUNTS, overhead=AMOUNTS),
    power_valid=st.booleans(),
    power_reasons=st.lists(GOOD_TEXT, max_size=2).map(tuple),
    hits_by_tier=st.dictionaries(st.sampled_from(["device", "host"]), COUNTS),
    peak_memory_bytes=st.none() | st.integers(0, 2**50),
    simulated=st.booleans(),
)
RECOMMENDATIONS = st.builds(
    Recommendation,
    trial=COUNTS,
    verified=st.booleans(),
    pairs=COUNTS,
    saving=st.none() | FINITE,
    saving_low=st.none() | st.floats(allow_nan=False),
    saving_high=st.none() | st.floats(allow_nan=False),
    note=GOOD_TEXT,
)
ARTIFACTS = st.builds(
    Artifact,
    name=st.sampled_from(["a", "b", "B"]),
    path=st.just("/x"),
    media_type=st.just("text/html"),
    sha256=st.just("00"),
    bytes=st.integers(0, 2**50),
)
WORKLOAD = Workload(
    name="w", seed=1, sessions=(Session(id="s", turns=(Turn(text="x", output_tokens=1),)),), concurrency=1
)
DEPLOYMENT = Deployment(decode=PoolConfig(engine=EngineConfig(model="m")))
SPECS = st.builds(
    lambda name, values: StudySpec(
        name=name,
        baseline=DEPLOYMENT,
        space=Space(knobs=(Knob(path="decode.power.cap", values=tuple(values)),)),
        workload=WORKLOAD,
        verify_workload=WORKLOAD,
        slos=("ttft:p90<500ms",),
        budget=Budget(trials=3),
    ),
    GOOD_TEXT,
    st.lists(st.none() | st.booleans() | st.integers() | FINITE | GOOD_TEXT, min_size=1, max_size=3),
)


class Twins(RuleBasedStateMachine):
    """The same call to both stores; studies are named by the order in which they were made."""

    @initialize(spec=SPECS)
    def open(self, spec: StudySpec) -> None:
        self.clock = FakeClock()
        self.folder = tempfile.mkdtemp(prefix="energyopt-twins-")
        self.sql = open_store(str(Path(self.folder) / "e.db"), clock=self.clock)
        self.memory = MemoryStudyStore(self.clock)
        self.ids: list[tuple[str, str]] = []
        self.create(spec, {})
        self.add_trial(0, {}, Origin.BASELINE, None)

    def teardown(self) -> None:
        if not hasattr(self, "sql"):
            return
        try:
            self.everything_is_alike()
        finally:
            self.sql.close()
            shutil.rmtree(self.folder)

    def same(self, study: int, call: Callable[[StudyStore, str], object]) -> None:
        """Both stores answer alike or refuse with the same error."""
        memory_id, sql_id = self.ids[study] if study < len(self.ids) else ("none", "none")
        answers = [_answer(call, self.memory, memory_id), _answer(call, self.sql, sql_id)]
        assert answers[0] == answers[1]

    @rule(spec=SPECS, machine=st.dictionaries(TEXT, TEXT, max_size=2))
    def create(self, spec: StudySpec, machine: dict[str, str]) -> None:
        made = self.memory.create_study(spec, machine), self.sql.create_study(spec, machine)
        self.ids.append((made[0].id, made[1].id))
        assert _plain(made[0], made[0].id) == _plain(made[1], made[1].id)

    @rule(duration=st.floats(0, 3))
    def wait(self, duration: float) -> None:
        self.clock.advance(duration)

    @rule(study=STUDIES, owner=OWNERS, ttl=st.floats(-1, 3))
    def claim(self, study: int, owner: str, ttl: float) -> None:
        self.same(study, lambda store, name: store.claim(name, owner, Seconds(ttl)))

    @rule(study=STUDIES, owner=OWNERS)
    def release(self, study: int, owner: str) -> None:
        self.same(study, lambda store, name: store.release(name, owner))

    @rule(study=STUDIES, state=st.sampled_from(StudyState), error=st.none() | TEXT)
    def set_state(self, study: int, state: StudyState, error: str | None) -> None:
        self.same(study, lambda store, name: store.set_state(name, state, error=error))

    @rule(study=STUDIES, state=st.sampled_from(StudyState), when=st.sets(st.sampled_from(StudyState)), error=TEXT)
    def change_state(self, study: int, state: StudyState, when: set[StudyState], error: str) -> None:
        self.same(study, lambda store, name: store.change_state(name, state, when=when, error=error))

    @rule(study=STUDIES, recommendation=RECOMMENDATIONS)
    def recommend(self, study: int, recommendation: Recommendation) -> None:
        self.same(study, lambda store, name: store.recommend(name, recommendation))

    @rule(study=STUDIES, params=VALUES, origin=st.sampled_from(Origin), pair=st.none() | st.integers(0, 5))
    def add_trial(self, study: int, params: dict[str, Value], origin: Origin, pair: int | None) -> None:
        self.same(study, lambda store, name: store.add_trial(name, params, DEPLOYMENT, origin, pair))

    @rule(study=STUDIES, number=NUMBERS, owner=OWNERS)
    def start_attempt(self, study: int, number: int, owner: str) -> None:
        self.same(study, lambda store, name: store.start_attempt(name, number, owner))

    @rule(
        study=STUDIES,
        number=NUMBERS,
        outcome=st.sampled_from(TrialOutcome),
        result=st.none() | RESULTS,
        error=st.none() | TEXT,
    )
    def finish_trial(
        self, study: int, number: int, outcome: TrialOutcome, result: RunResult | None, error: str | None
    ) -> None:
        self.same(study, lambda store, name: store.finish_trial(name, number, outcome, result=result, error=error))

    @rule(study=STUDIES, owner=OWNERS)
    def requeue_lost(self, study: int, owner: str) -> None:
        self.same(study, lambda store, name: store.requeue_lost(name, owner))

    @rule(number=NUMBERS, result=RESULTS)
    def lose_and_run_again(self, number: int, result: RunResult) -> None:
        """A whole story, which single steps seldom tell."""
        self.start_attempt(0, number, "a")
        self.requeue_lost(0, "a")
        self.requeue_lost(0, "b")
        self.start_attempt(0, number, "b")
        self.finish_trial(0, number, TrialOutcome.FEASIBLE, result, None)

    @rule(study=STUDIES, kind=TEXT, data=VALUES)
    def add_event(self, study: int, kind: str, data: dict[str, Value]) -> None:
        self.same(study, lambda store, name: store.add_event(name, kind, data))

    @rule(study=STUDIES, after=st.integers(-1, 10), limit=st.integers(-1, 10))
    def events(self, study: int, after: int, limit: int) -> None:
        self.same(study, lambda store, name: store.events(name, after=after, limit=limit))

    @rule(study=STUDIES, artifact=ARTIFACTS)
    def add_artifact(self, study: int, artifact: Artifact) -> None:
        self.same(study, lambda store, name: store.add_artifact(name, artifact))

    @rule()
    def everything_is_alike(self) -> None:
        newest = [study.id for study in self.memory.studies()], [study.id for study in self.sql.studies()]
        assert list(zip(*newest, strict=True)) == self.ids[::-1][:50]
        for study in range(len(self.ids)):
            self.same(study, lambda store, name: store.study(name))
            self.same(study, lambda store, name: store.trials(name))
            self.same(study, lambda store, name: list(store.artifacts(name)))


def _answer(call: Callable[[StudyStore, str], object], store: StudyStore, study: str) -> str:
    try:
        answer = call(store, study)
    except EnergyoptError as error:
        return f"{type(error).__name__}: {error}".replace(study, "STUDY")
    return _plain(answer, study)


def _plain(answer: object, study: str) -> str:
    """By ``repr``, which tells 1 from True and 0.0 from -0.0."""
    parts = answer if isinstance(answer, list) else [answer]
    shown = [repr(part.model_dump()) if isinstance(part, BaseModel) else repr(part) for part in parts]
    return "\n".join(shown).replace(study, "STUDY")


Twins.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking opens a database a step: minutes for one failure
    suppress_health_check=[HealthCheck.too_slow],
)
TestTwins = Twins.TestCase
