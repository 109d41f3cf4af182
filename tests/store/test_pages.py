"""Pages neither repeat nor hide a row, and the front found by SQL is the one found by comparing everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from alembic import command
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.errors import NotFoundError
from energyopt.core.jobs import StudyFilter, TrialFilter, TrialLine, TrialOrder
from energyopt.core.pareto import pareto_front
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, StudySpec, StudyState, TrialOutcome, TrialState
from energyopt.store import fronts
from energyopt.store.fronts import Benefit, Latency
from energyopt.store.migrations import configuration
from energyopt.store.service_store import ServiceStore, open_service_store
from energyopt.store.service_tables import FrontRow
from energyopt.store.tables import StudyRow, TrialRow


@pytest.fixture
def service(url: str, clock: FakeClock) -> Iterator[ServiceStore]:
    store = open_service_store(url, clock=clock)
    yield store
    store.close()


def fill(service: ServiceStore, study: str, count: int, seed: int = 0, *, coarse: bool = False) -> None:
    """Trials with random figures, some equal, some infeasible, some without a figure."""
    draw = random.Random(seed)

    def figure() -> float | None:
        value = draw.randint(1, 6) if coarse else draw.random()
        return draw.choice([None, float("inf")]) if draw.random() < 0.05 else value

    rows: list[dict[str, Any]] = [
        {
            "study_id": study,
            "number": number,
            "origin": draw.choice(["search", "search", "verify_winner", "repeat"]),
            "state": "done",
            "outcome": draw.choice(["feasible", "feasible", "infeasible"]),
            "attempts": 1,
            "created": service.studies.study(study).created,
            "deployment_digest": str(draw.randint(0, count)),
            "params": '{"a": 1}',
            "deployment": "{}",
            "tokens_per_joule": draw.choice([None, draw.random(), figure() if coarse else draw.random()]),
            "output_rate": draw.random(),
            "ttft_p90": figure(),
            "itl_p99": figure(),
            "tpot_p90": figure(),
        }
        for number in range(count)
    ]
    with service.engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        connection.execute(insert(TrialRow), rows)


def end_in_any_order(service: ServiceStore, study: str, seed: int) -> None:
    with Session(service.engine.execution_options(sqlite_begin="IMMEDIATE")) as session, session.begin():
        rows = list(session.scalars(select(TrialRow).where(TrialRow.study_id == study)))
        random.Random(seed).shuffle(rows)
        for row in rows:
            fronts.offer(session, row)


def missed_again(service: ServiceStore, study: str) -> set[int]:
    """The trials whose configuration missed an SLO in a repetition."""
    with Session(service.engine) as session:
        rows = list(session.scalars(select(TrialRow).where(TrialRow.study_id == study)))
    digests = {row.deployment_digest for row in rows if row.origin != "search" and row.outcome == "infeasible"}
    return {row.number for row in rows if row.deployment_digest in digests}


def test_studies_come_newest_first_page_by_page(service: ServiceStore, spec: StudySpec) -> None:
    ids = [service.jobs.submit(spec, {}, labels={"n": str(n % 2)}, tenant=f"t{n % 3}")[0] for n in range(7)]
    plain = service.studies.create_study(spec, {}).id
    seen: list[str] = []
    before = None
    while page := service.pages.studies(StudyFilter(), limit=3, before=before):
        seen += [line.id for line in page]
        before = page[-1].sequence
        if len(seen) == 3:
            service.jobs.submit(spec, {}, labels={})  # comes in between and belongs to none of the pages
    assert seen == [plain, *reversed(ids)]
    line = service.pages.studies(StudyFilter(labels={"n": "1"}), limit=9)[0]
    assert (line.id, line.slos, line.maximize, line.labels) == (ids[5], spec.slos, spec.maximize, {"n": "1"})
    assert line.name == spec.name
    assert [x.id for x in service.pages.studies(StudyFilter(tenant="t0"), limit=9)] == [ids[6], ids[3], ids[0]]
    assert service.pages.studies(StudyFilter(tenant="t0", labels={"n": "0", "m": "0"}), limit=9) == []
    assert service.pages.studies(StudyFilter(states=(StudyState.FAILED,)), limit=9) == []
    assert service.pages.studies(StudyFilter(model="none"), limit=9) == []


@pytest.mark.parametrize("order", list(TrialOrder))
def test_trials_come_in_order_page_by_page(service: ServiceStore, spec: StudySpec, order: TrialOrder) -> None:
    study = service.studies.create_study(spec, {}).id
    fill(service, study, 60, coarse=True)
    chosen = TrialFilter(order=order, states=(TrialState.DONE,), outcomes=("feasible",))
    whole = service.pages.trials(study, chosen, limit=1000)
    seen: list[TrialLine] = []
    while page := service.pages.trials(study, chosen, limit=7, after=_mark(seen, order)):
        seen += page
    assert seen == whole
    every = service.pages.trials(study, TrialFilter(), limit=1000)
    assert len(every) == 60
    kept = [t for t in every if t.outcome == "feasible" and (order is TrialOrder.NUMBER or _at(t, order) is not None)]
    sign = -1 if order.descending else 1
    assert whole == sorted(kept, key=lambda t: (sign * (_at(t, order) or 0.0), t.number))


def _at(trial: TrialLine, order: TrialOrder) -> float | None:
    value: float | None = getattr(trial, order.value)
    return value


def _mark(seen: list[TrialLine], order: TrialOrder) -> tuple[float | None, int] | None:
    return (_at(seen[-1], order), seen[-1].number) if seen else None


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 64])
@pytest.mark.parametrize(("benefit", "latency"), [("tokens_per_joule", "tpot_p90"), ("output_rate", "ttft_p90")])
def test_the_front_is_that_of_comparing_everything(
    service: ServiceStore, spec: StudySpec, benefit: Benefit, latency: Latency, seed: int, coarse: bool
) -> None:
    study = service.studies.create_study(spec, {}).id
    fill(service, study, 200, seed=seed, coarse=coarse)
    end_in_any_order(service, study, seed)
    every = service.pages.trials(study, TrialFilter(outcomes=("feasible",)), limit=1000)

    def objectives(trial: TrialLine) -> tuple[float | None, float | None]:
        x, y = getattr(trial, benefit), getattr(trial, latency)
        return x, None if y is None else -y

    missed = missed_again(service, study)
    points = [trial for trial in every if trial.origin == "search" and trial.number not in missed]
    assert len(points) < sum(trial.origin == "search" for trial in every), "some are withdrawn"
    slow = pareto_front(points, objectives)
    assert slow
    found = service.pages.front(study, benefit, latency)
    assert found == sorted(slow, key=lambda trial: getattr(trial, latency))
    with Session(service.engine.execution_options(sqlite_begin="IMMEDIATE")) as session, session.begin():
        fronts.rebuild(session, study)
    assert service.pages.front(study, benefit, latency) == found


def test_a_database_of_before_gets_its_fronts(service: ServiceStore, spec: StudySpec) -> None:
    study = service.studies.create_study(spec, {}).id
    fill(service, study, 300, seed=5, coarse=True)
    end_in_any_order(service, study, 5)
    found = {pair: service.pages.front(study, *pair) for pair in fronts.PAIRS}
    with service.engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        command.downgrade(configuration(connection), "0005")
        command.upgrade(configuration(connection), "head")
    assert {pair: service.pages.front(study, *pair) for pair in fronts.PAIRS} == found
    assert all(found.values())
    with service.engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        connection.execute(delete(StudyRow).where(StudyRow.id == study))
        assert connection.scalar(select(func.count()).select_from(FrontRow)) == 0


def test_a_finished_trial_brings_its_figures(
    service: ServiceStore, spec: StudySpec, deployment: Deployment, result: RunResult
) -> None:
    study = service.studies.create_study(spec, {}).id
    service.studies.add_trial(study, {"a": 1.5}, deployment, Origin.BASELINE)
    service.studies.start_attempt(study, 0, "x")
    service.studies.finish_trial(study, 0, TrialOutcome.FEASIBLE, result=result)
    (line,) = service.pages.trials(study, TrialFilter(), limit=5)
    assert (line.tokens_per_joule, line.output_rate) == (result.tokens_per_joule, result.output_rate)
    assert (line.ttft_p90, line.tpot_p90, line.energy_source) == (float("inf"), None, "counter+estimated")
    assert (line.params, line.outcome, line.simulated) == ({"a": 1.5}, "feasible", False)


def test_an_unknown_study_has_no_pages(service: ServiceStore) -> None:
    with pytest.raises(NotFoundError):
        service.pages.trials("none", TrialFilter(), limit=5)
    with pytest.raises(NotFoundError):
        service.pages.front("none", "output_rate", "tpot_p90")
