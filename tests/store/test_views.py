"""The views that boards read say the same as the project's own summary, on both databases."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from alembic import command
from sqlalchemy import inspect, text

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.results import (
    EnergyReading,
    LatencySummary,
    RunResult,
    Scope,
    Source,
    VerdictRecord,
    total_energy,
)
from energyopt.core.study import Origin, Recommendation, StudySpec, TrialOutcome
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.store.database import make_engine, open_store, parse_url
from energyopt.store.migrations import configuration
from tuner.summary import summarize_study


def run(joules: float | None, tpot: float, *, met: bool = True, tokens: int = 100) -> RunResult:
    reading = EnergyReading(
        device="GPU-1",
        joules=Joules(joules or 0.0),
        error=Joules(0.1),
        scope=Scope.GPU,
        source=Source.COUNTER,
        window=Seconds(2.0),
    )
    same = Seconds(tpot)
    verdict = VerdictRecord(
        slo="tpot:p90<1s",
        state="met" if met else "violated",
        estimate=tpot,
        bound=None,
        violation=-0.5 if met else 0.5,
        samples=4,
        confidence=0.95,
    )
    return RunResult(
        window=Seconds(2.0),
        requests=4,
        failed_requests=0,
        prompt_tokens=Tokens(10),
        cached_tokens=Tokens(5),
        output_tokens=Tokens(tokens),
        latencies={"tpot": LatencySummary(samples=4, mean=same, p50=same, p90=same, p95=same, p99=same)},
        verdicts=(verdict,),
        energy=None if joules is None else total_energy([reading]),
        power_valid=joules is not None,
    )


def rows(url: str, query: str) -> list[Mapping[str, object]]:
    engine = make_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(query)).mappings()]
    finally:
        engine.dispose()


def add(
    store: StudyStore,
    study: str,
    deployment: Deployment,
    result: RunResult | None,
    origin: Origin = Origin.SEARCH,
    outcome: TrialOutcome | None = None,
) -> int:
    number = store.add_trial(study, {"decode.power.cap": 300.5}, deployment, origin).number
    store.start_attempt(study, number, "a")
    found = outcome or (TrialOutcome.FEASIBLE if result and result.feasible else TrialOutcome.INFEASIBLE)
    store.finish_trial(study, number, found, result=result)
    return number


def other(deployment: Deployment, seats: int) -> Deployment:
    engine = deployment.decode.engine.model_copy(update={"max_num_seqs": seats})
    return deployment.model_copy(update={"decode": deployment.decode.model_copy(update={"engine": engine})})


@pytest.mark.parametrize("maximize", ["tokens_per_joule", "output_rate"])
def test_the_front_is_that_of_the_summary(
    url: str, spec: StudySpec, deployment: Deployment, clock: FakeClock, maximize: str
) -> None:
    chance = random.Random(5)
    with open_store(url, clock=clock) as store:
        study = store.create_study(spec.model_copy(update={"maximize": maximize}), {}).id
        made = [other(deployment, number) for number in range(1, 41)]
        for one in range(len(made)):
            joules = chance.choice([None, 1.0, 2.0, 4.0, 5.0])
            tpot = chance.choice([0.1, 0.2, 0.3, math.inf])
            result = run(joules, tpot, met=chance.random() < 0.7, tokens=chance.choice([50, 100, 200]))
            origin = chance.choice([Origin.SEARCH, Origin.SEARCH, Origin.VERIFY_WINNER, Origin.REPEAT])
            mine = chance.choice(made[: one + 1]) if origin.repeats else made[one]
            add(store, study, mine, result, origin)
        add(store, study, deployment, None, outcome=TrialOutcome.OOM)
        summary = summarize_study(store.study(study), store.trials(study))
    found = rows(url, "SELECT number FROM energyopt_v_pareto WHERE on_front = 1 ORDER BY number")
    assert [row["number"] for row in found] == sorted(row.trial for row in summary.front)
    assert summary.front
    withdrawn = {row.trial for row in summary.rows if row.withdrawn}
    assert withdrawn, "no repetition missed: nothing was proven of it"
    shown = {row["number"] for row in rows(url, "SELECT number FROM energyopt_v_pareto")}
    drawable = {
        row.trial
        for row in summary.rows
        if not row.origin.repeats and row.tpot_p90 not in (None, math.inf) and getattr(row, maximize) is not None
    }
    assert shown == drawable


def test_the_best_so_far_never_falls_and_counts_only_feasible_trials(
    url: str, spec: StudySpec, deployment: Deployment
) -> None:
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
        other = store.create_study(spec, {}).id
        for joules, met in ((8.0, False), (20.0, True), (40.0, True), (10.0, True), (1.0, False)):
            add(store, study, deployment, run(joules, 0.1, met=met))
        add(store, other, deployment, run(0.5, 0.1))
        add(store, study, deployment, run(0.5, 0.1), Origin.VERIFY_WINNER)
        store.add_trial(study, {}, deployment, Origin.SEARCH)
    found = rows(url, f"SELECT value, best FROM energyopt_v_best WHERE study_id = '{study}' ORDER BY number")
    assert [row["best"] for row in found] == [None, 5.0, 5.0, 10.0, 10.0]
    assert [row["value"] for row in found] == [12.5, 5.0, 2.5, 10.0, 100.0]


def test_a_study_is_counted_and_its_recommendation_read(url: str, spec: StudySpec, deployment: Deployment) -> None:
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
        add(store, study, deployment, run(8.0, 0.1), Origin.BASELINE)
        add(store, study, deployment, run(8.0, 0.1, met=False))
        add(store, study, deployment, None, outcome=TrialOutcome.OOM)
        store.add_trial(study, {}, deployment, Origin.SEARCH)
        before = rows(url, "SELECT * FROM energyopt_v_studies")[0]
        store.recommend(study, Recommendation(trial=0, verified=True, pairs=3, saving=0.25, saving_low=0.1))
    after = rows(url, "SELECT * FROM energyopt_v_studies")[0]
    assert {name: before[name] for name in ("trials", "finished", "feasible")} == {
        "trials": 4,
        "finished": 3,
        "feasible": 1,
    }
    assert [before[name] for name in ("chosen", "verified", "saving")] == [None, None, None]
    names = ("chosen", "verified", "pairs", "saving", "saving_low", "saving_high", "state")
    assert [after[name] for name in names] == [0, 1, 3, 0.25, 0.1, None, "succeeded"]


def test_moments_are_seconds_since_1970(url: str, spec: StudySpec, deployment: Deployment, clock: FakeClock) -> None:
    with open_store(url, clock=clock) as store:
        study = store.create_study(spec, {})
        number = store.add_trial(study.id, {}, deployment, Origin.SEARCH).number
        clock.advance(60)
        store.start_attempt(study.id, number, "a")
        done = store.finish_trial(study.id, number, TrialOutcome.FEASIBLE, result=run(1.0, 0.1))
    assert done.ended is not None
    found = rows(url, "SELECT time, time_end FROM energyopt_v_trials")[0]
    assert found == {"time": int(done.created.timestamp()), "time_end": int(done.ended.timestamp())}


def test_knobs_are_text_and_number(url: str, spec: StudySpec, deployment: Deployment) -> None:
    values = {"a": True, "b": None, "c": 300.5, "d": 'x"y', "e": 4}
    with open_store(url) as store:
        store.add_trial(store.create_study(spec, {}).id, values, deployment, Origin.SEARCH)
    found = rows(url, "SELECT knob, setting, setting_number FROM energyopt_v_knobs ORDER BY knob")
    assert [tuple(row.values()) for row in found] == [
        ("a", "true", None),
        ("b", "as found", None),
        ("c", "300.5", 300.5),
        ("d", 'x"y', None),
        ("e", "4", 4.0),
    ]


def test_a_database_of_the_first_revision_gains_the_views_and_can_lose_them(url: str, spec: StudySpec) -> None:
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
    engine = make_engine(parse_url(url))
    with engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        command.downgrade(configuration(connection), "0001")
        assert not inspect(connection).get_view_names()
    engine.dispose()
    open_store(url).close()
    assert [row["study_id"] for row in rows(url, "SELECT study_id FROM energyopt_v_studies")] == [study]


def test_what_is_unknown_stays_unknown(url: str, spec: StudySpec, deployment: Deployment) -> None:
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
        add(store, study, deployment, run(None, 0.1))
        store.add_trial(study, {}, deployment, Origin.SEARCH)
    first, second = rows(url, "SELECT * FROM energyopt_v_trials ORDER BY number")
    assert first["tokens_per_joule"] is None
    assert first["joules"] is None
    assert first["output_rate"] == 50.0
    assert [second[name] for name in ("outcome", "feasible", "value", "time_end", "output_rate")] == [None] * 5
