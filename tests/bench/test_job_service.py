"""Figures of the job service: lists and fronts of a hundred thousand trials, and five hundred watchers."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from api.jobs.hub import EventHub
from energyopt.core.jobs import StudyFilter, TrialFilter, TrialOrder
from energyopt.store import fronts
from energyopt.store.service_store import ServiceStore, open_service_store
from energyopt.store.tables import TrialRow
from tests.bench.figures import Report
from tuner.fake_study import toy_spec

pytestmark = pytest.mark.bench
TRIALS = 100_000
WATCHERS, STUDIES, SECONDS = 500, 50, 20


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceStore]:
    url = f"sqlite:///{tmp_path}/e.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = open_service_store(url)
    yield opened
    opened.close()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def timed(call: Callable[[], object], times: int = 100) -> list[float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def test_lists_and_fronts_of_many_trials(store: ServiceStore, figure: Report) -> None:
    study = store.jobs.submit(toy_spec(), {}, labels={})[0]
    draw = random.Random(0)
    created = store.studies.study(study).created

    def row(number: int) -> dict[str, Any]:
        figures = {name: draw.random() for name in ("output_rate", "ttft_p90", "itl_p99", "tpot_p90")}
        return {
            "study_id": study,
            "number": number,
            "origin": "search",
            "state": "done",
            "outcome": "feasible" if draw.random() < 0.7 else "infeasible",
            "attempts": 1,
            "created": created,
            "deployment_digest": f"{number:x}",
            "params": '{"decode.engine.max_num_seqs": 32}',
            "deployment": '{"decode": 1}' * 40,
            "tokens_per_joule": draw.random(),
            **figures,
        }

    with store.engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        for start in range(0, TRIALS, 5000):
            connection.execute(insert(TrialRow), [row(number) for number in range(start, start + 5000)])
    with Session(store.engine.execution_options(sqlite_begin="IMMEDIATE")) as session, session.begin():
        fronts.rebuild(session, study)
    best = TrialFilter(order=TrialOrder.TOKENS_PER_JOULE)
    calls: dict[str, Callable[[], object]] = {
        "studies": lambda: store.pages.studies(StudyFilter(), limit=50),
        "first trials": lambda: store.pages.trials(study, TrialFilter(), limit=100),
        "late trials": lambda: store.pages.trials(study, TrialFilter(), limit=100, after=(None, TRIALS - 200)),
        "best trials": lambda: store.pages.trials(study, best, limit=100),
        "front": lambda: store.pages.front(study, "tokens_per_joule", "tpot_p90"),
        "counts": lambda: store.pages.counts(study),
    }
    for name, call in calls.items():
        call()
        took = timed(call)
        low, high = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
        figure(f"service, {TRIALS:,} trials, {store.engine.dialect.name}: {name}, p99", high, "ms")
        line = f"{store.engine.dialect.name} {name}: p50 {low:.1f} ms, p99 {high:.1f} ms"
        print(line)  # noqa: T201 - a bench exists to print its figures


async def test_many_watchers(store: ServiceStore, figure: Report) -> None:
    """Delay from the commit of an event to every watcher's hands; each event once, in order."""
    ids = [store.jobs.submit(toy_spec(), {}, labels={})[0] for _ in range(STUDIES)]
    hub = EventHub(store.tail, max_watchers=WATCHERS)
    written: dict[int, float] = {}
    orders: dict[str, list[int]] = {study: [] for study in ids}
    delays: list[float] = []
    seen: list[list[int]] = [[] for _ in range(WATCHERS)]

    async def watch(number: int) -> None:
        async for frame in hub.watch(ids[number % STUDIES], 0):
            if frame.startswith(b"id: "):
                event = int(frame[4 : frame.index(b"\n")])
                seen[number].append(event)
                if event in written:
                    delays.append(time.perf_counter() - written[event])

    def write() -> None:
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            for study in ids:
                event = store.studies.add_event(study, "trial_finished", {"trial": 1, "value": 2.5})
                written[event.id] = time.perf_counter()
                orders[study].append(event.id)
            time.sleep(0.5)

    watchers = [asyncio.create_task(watch(number)) for number in range(WATCHERS)]
    await asyncio.sleep(2.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await asyncio.to_thread(write)
    await asyncio.sleep(3.0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    hub.close()
    await asyncio.gather(*watchers)
    for number, got in enumerate(seen):
        assert got == orders[ids[number % STUDIES]]
    late = quantile(delays, 0.99)
    figure(f"service, {store.engine.dialect.name}: event to {WATCHERS} watchers, p99", late, "s")
    print(  # noqa: T201 - a bench exists to print its figures
        f"{store.engine.dialect.name}: {WATCHERS} watchers, {STUDIES} studies, {len(written)} events, "
        f"{len(delays)} deliveries: delay p50 {quantile(delays, 0.5):.3f} s, p99 {quantile(delays, 0.99):.3f} s; "
        f"memory +{(after - before) / 1024:.1f} MiB"
    )
