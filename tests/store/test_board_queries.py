"""Every SQL panel of the Tuning board runs on both databases and shows what the study holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from dashboards.catalog import TUNING, Flavour
from dashboards.lint import lint_boards
from dashboards.shipped import shipped_boards
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
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.store.database import make_engine, open_store, parse_url

TRIALS = ((100.0, 0.05, True), (50.0, 0.04, True), (25.0, 0.2, True), (20.0, 0.9, False))
"""Joules, seconds per token and whether the SLO was kept, of 400 tokens each: 4, 8, 16 and 20 tokens per joule."""


@pytest.fixture
def asked(url: str, spec: StudySpec, deployment: Deployment) -> Iterator[tuple[Connection, str]]:
    """A database with one study that found something, and the study's id."""
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
        for index, (joules, tpot, met) in enumerate(TRIALS):
            origin = Origin.SEARCH if index else Origin.BASELINE
            number = store.add_trial(study, {"decode.power.cap": 300.5 + index}, deployment, origin).number
            store.start_attempt(study, number, "a")
            outcome = TrialOutcome.FEASIBLE if met else TrialOutcome.INFEASIBLE
            store.finish_trial(study, number, outcome, result=_result(joules, tpot, met))
        lost = store.add_trial(study, {}, deployment, Origin.SEARCH).number
        store.start_attempt(study, lost, "a")
        store.finish_trial(study, lost, TrialOutcome.OOM, error="2 GiB are free")
        found = Recommendation(trial=1, verified=True, pairs=3, saving=0.5, saving_low=0.4, saving_high=0.6)
        store.recommend(study, found)
    engine = make_engine(parse_url(url))
    with engine.connect() as connection:
        yield connection, study
    engine.dispose()


def _result(joules: float, tpot: float, met: bool) -> RunResult:
    at, excess = Seconds(tpot), -0.5 if met else 0.8
    reading = EnergyReading(
        device="GPU-1",
        joules=Joules(joules),
        error=Joules(0.1),
        scope=Scope.GPU,
        source=Source.COUNTER,
        window=Seconds(2.0),
    )
    verdict = VerdictRecord(
        slo="tpot:p90<0.5s", state="", estimate=tpot, bound=None, violation=excess, samples=4, confidence=0.95
    )
    return RunResult(
        window=Seconds(2.0),
        requests=4,
        failed_requests=0,
        prompt_tokens=Tokens(10),
        cached_tokens=Tokens(5),
        output_tokens=Tokens(400),
        latencies={"tpot": LatencySummary(samples=4, mean=at, p50=at, p90=at, p95=at, p99=at)},
        verdicts=(verdict,),
        energy=total_energy([reading]),
        power_valid=True,
    )


def board(connection: Connection) -> dict[str, Any]:
    flavour: Flavour = "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
    return next(board for board in shipped_boards(flavour) if board["uid"] == TUNING)


def sql_of(target: dict[str, Any]) -> str:
    found: str = target.get("rawSql") or target["rawQueryText"]
    return found


def ask(connection: Connection, sql: str, study: str) -> list[dict[str, Any]]:
    quoted = sql.replace("${study:sqlstring}", f"'{study}'").replace(":", r"\:")
    return [dict(row) for row in connection.execute(text(quoted)).mappings()]


def test_every_panel_has_rows_and_the_right_ones(asked: tuple[Connection, str]) -> None:
    connection, study = asked
    found = {
        panel["title"]: ask(connection, sql_of(panel["targets"][0]), study)
        for panel in board(connection)["panels"]
        if panel["type"] != "row"
    }
    assert all(found.values()), [title for title, rows in found.items() if not rows]
    first = {title: next(iter(rows[0].values())) for title, rows in found.items() if len(rows[0]) == 1}
    assert first == {
        "Trials finished": 5,
        "Feasible share": pytest.approx(0.6),
        "Best so far": 16.0,
        "Energy saved": 0.5,
        "At least saved": 0.4,
        "Verification": 1,
    }
    assert [row["best"] for row in found["Best over trials"]] == [4.0, 8.0, 16.0, 16.0, 16.0]
    assert [row["trial"] for row in found["Every trial"]] == [2, 1, 0, 3, 4]
    assert [row["tok/J"] for row in found["Every trial"]] == [16.0, 8.0, 4.0, 20.0, None]
    assert {(row["setting"], row["best"]) for row in found["What each setting led to"]} == {
        ("300.5", 4.0),
        ("301.5", 8.0),
        ("302.5", 16.0),
    }
    assert [(row["trial"], row["error"]) for row in found["What failed, and why"]] == [(3, None), (4, "2 GiB are free")]
    assert [(row["name"], row["saving"]) for row in found["Studies"]] == [("café", 0.5)]


def test_the_scatter_has_a_column_per_series(asked: tuple[Connection, str]) -> None:
    connection, study = asked
    panel = next(panel for panel in board(connection)["panels"] if panel["type"] == "xychart")
    rows = ask(connection, sql_of(panel["targets"][0]), study)
    drawn = {
        series["name"]["fixed"]: {
            (row[series["x"]["matcher"]["options"]], row[series["y"]["matcher"]["options"]])
            for row in rows
            if row[series["y"]["matcher"]["options"]] is not None
        }
        for series in panel["options"]["series"]
    }
    assert drawn == {
        "misses an SLO": {(0.9, 20.0)},
        "keeps the SLOs": {(0.05, 4.0)},
        "Pareto set": {(0.04, 8.0), (0.2, 16.0)},
        "chosen": {(0.04, 8.0)},
    }


def test_the_variable_and_the_annotations(asked: tuple[Connection, str]) -> None:
    connection, study = asked
    model = board(connection)
    variable = next(variable for variable in model["templating"]["list"] if variable["name"] == "study")
    assert ask(connection, variable["query"], study) == [{"__text": f"café ({study[:8]})", "__value": study}]
    marks = ask(connection, sql_of(model["annotations"]["list"][0]["target"]), study)
    assert [mark["text"] for mark in marks][-2:] == ["trial 3: infeasible", "trial 4: oom"]
    assert all(1.6e9 < mark["time"] <= mark["timeend"] for mark in marks)


def test_lint_asks_the_database(asked: tuple[Connection, str]) -> None:
    """The same query with a column that no view has is refused by the database that would serve it."""
    connection, _ = asked

    def explain(sql: str) -> str | None:
        try:
            connection.execute(text(f"EXPLAIN {sql}".replace(":", r"\:")))
        except SQLAlchemyError as error:
            connection.rollback()
            return type(error).__name__
        return None

    model = board(connection)
    assert lint_boards([model], explain) == []
    target = next(panel for panel in model["panels"] if panel["title"] == "Trials finished")["targets"][0]
    for key in ("rawSql", "rawQueryText"):
        if key in target:
            target[key] = target[key].replace("finished", "finishedd")
    assert [finding.panel for finding in lint_boards([model], explain)] == ["Trials finished"]
