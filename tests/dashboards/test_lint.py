"""The lint finds nothing in the shipped boards, and each planted fault by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dashboards.expression import Reader, catalogue_series
from dashboards.lint import lint_boards
from dashboards.shipped import shipped_boards
from dashboards.units import of_unit, times, written

Board = dict[str, Any]


def test_the_shipped_boards_are_clean(boards: list[Board]) -> None:
    assert [str(finding) for finding in lint_boards(boards)] == []


def panel(board: Board, title: str) -> dict[str, Any]:
    return next(found for found in board["panels"] if found["title"] == title)


def asks(expression: str, title: str = "Power by host", **changes: str) -> Callable[[Board], None]:
    def change(board: Board) -> None:
        target = panel(board, title)["targets"][0]
        target.update({"expr": expression, "legendFormat": "x", **changes})

    return change


def put(title: str, key: str, value: object) -> Callable[[Board], None]:
    def change(board: Board) -> None:
        at = panel(board, title)
        *path, last = key.split(".")
        for step in path:
            at = at[step]
        at[last] = value

    return change


J = 'energyopt_gpu_energy_joules_total{job="x"}'
FAULTS: dict[str, tuple[Callable[[Board], None], str]] = {
    "unknown metric": (asks('rate(energyopt_gpu_watts_total{job="x"}[$__rate_interval])'), "not in the catalogue"),
    "unknown label": (
        asks('energyopt_gpu_power_watts{job="x",gpu="0"}'),
        "energyopt_gpu_power_watts has no label 'gpu'",
    ),
    "grouping by an unknown label": (asks(f"sum by (model) (rate({J}[$__rate_interval]))"), "by a label that is not"),
    "matching on a lost label": (
        asks(f"sum(rate({J}[$__rate_interval])) * on (job) sum(rate({J}[$__rate_interval]))"),
        "matches on a label that is not there: 'job'",
    ),
    "legend of a lost label": (
        asks(f"sum(rate({J}[$__rate_interval]))", legendFormat="{{gpu_uuid}}"),
        "has the label 'gpu_uuid' in its legend",
    ),
    "counter without rate": (asks(f"sum({J})"), "takes the value of the counter"),
    "rate of a gauge": (asks('rate(energyopt_gpu_power_watts{job="x"}[$__rate_interval])'), "takes a rate of"),
    "joules shown as watts": (asks(f"sum(increase({J}[$__rate_interval]))"), "shows J as J/s"),
    "seconds shown as watts": (asks('max(energyopt_gpu_sample_age_seconds{job="x"})'), "shows s as J/s"),
    "mixed units": (
        asks(f'rate({J}[$__rate_interval]) + energyopt_gpu_sample_age_seconds{{job="x"}}'),
        "J/s + s mixes units",
    ),
    "fixed range": (asks(f"rate({J}[5m])"), "fixed range"),
    "no job": (asks("energyopt_gpu_power_watts{gpu_uuid='x'}"), "does not select by job"),
    "syntax": (asks("sum(("), "does not parse"),
    "type": (asks(J.replace("_energy_joules_total", "_power_watts").join(("rate(", ")"))), "does not parse"),
    "unknown variable": (
        asks('energyopt_gpu_power_watts{job=~"$jobs"}'),
        "uses the variable $jobs, which the board lacks",
    ),
    "quantile without le": (
        asks('histogram_quantile(0.9, sum by (job) (rate(energyopt_request_energy_joules_bucket{job="x"}[1m])))'),
        "without the label 'le'",
    ),
    "no help": (put("Power now", "description", ""), "has no help text"),
    "no word for nothing": (put("Power now", "fieldConfig.defaults.noValue", ""), "does not say what is missing"),
    "unknown unit": (put("Power now", "fieldConfig.defaults.unit", "wattz"), "'wattz' is not one"),
    "no plugin version": (put("Power now", "pluginVersion", None), "has no pluginVersion"),
    "no query": (put("Power now", "targets", []), "asks nothing"),
    "same title": (put("Power now", "title", "Energy in range"), "another panel has the same title"),
    "overlap": (put("Power now", "gridPos.w", 5), "lies over 'Power now'"),
    "too wide": (put("Energy per day", "gridPos.w", 9), "is wider than 24"),
    "same id": (put("Power now", "id", 3), "without an id, or with the same"),
    "fixed data source": (
        put("Power now", "targets", [{"expr": "vector(1)", "datasource": {"uid": "prom1"}}]),
        "does not go through a data source variable",
    ),
    "bad uid": (lambda board: board.update(uid="energy opt"), "is not 1 to 40"),
    "editable": (lambda board: board.update(editable=True), "is editable"),
    "unused variable": (
        lambda board: board["templating"]["list"].append({"name": "tenant", "type": "query"}),
        "the variable 'tenant' is used nowhere",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    board = copy.deepcopy(shipped_boards("postgresql")[0])
    change, words = FAULTS[fault]
    change(board)
    found = [str(finding) for finding in lint_boards([board])]
    assert any(words in line for line in found), found


SQL_FAULTS = {
    "SELECT * FROM energyopt_trials": "reads 'energyopt_trials', which is none of the views",
    "DELETE FROM energyopt_v_trials": "is no SELECT",
    "SELECT time::int FROM energyopt_v_trials": "uses '::'",
    "SELECT nothing FROM energyopt_v_trials": "refused by the database: no such column",
}


@pytest.mark.parametrize("sql", SQL_FAULTS)
def test_a_fault_in_sql_is_found(sql: str) -> None:
    board = copy.deepcopy(shipped_boards("postgresql")[3])
    panel(board, "Trials finished")["targets"][0]["rawSql"] = sql
    found = [str(f) for f in lint_boards([board], lambda q: "no such column" if "nothing" in q else None)]
    assert any(SQL_FAULTS[sql] in line for line in found), found


def test_boards_that_take_each_others_place_are_found() -> None:
    board = shipped_boards("sqlite")[0]
    found = [finding.problem for finding in lint_boards([board, board])]
    assert "another board has the same uid" in found
    assert "another board has the same title" in found


@pytest.mark.parametrize(
    ("expression", "unit", "labels"),
    [
        (f"rate({J}[1m])", "J/s", {"gpu_uuid", "scope", "source", "cluster", "job", "instance"}),
        (f"sum by (job) (increase({J}[1m])) / 3600", "J", {"job"}),
        ("sum(rate(energyopt_tokens_total[1m])) / sum(energyopt_gpu_power_watts)", "tok/J", set()),
        ("count(energyopt_gpu_up)", "1", set()),
        (
            "histogram_quantile(0.9, sum by (le, model) (rate(energyopt_request_energy_joules_bucket[1m])))",
            "J",
            {"model"},
        ),
        (
            "rate(energyopt_request_energy_joules_count[1m])",
            "req/s",
            {"model", "tenant", "source", "cluster", "job", "instance"},
        ),
        ("max_over_time(energyopt_gpu_power_watts[5m]) > 3", "J/s", None),
        ("vector(0.5)", "?", set()),
    ],
)
def test_units_and_labels_follow_from_the_expression(expression: str, unit: str, labels: set[str] | None) -> None:
    reader = Reader(catalogue_series())
    value = reader.read(expression)
    if "max_over_time" not in expression:
        assert reader.problems == []
        assert value.labels == labels
    assert written(value.dimension) == unit


def test_dimensions() -> None:
    assert times({"J": 1}, {"s": 1}, -1) == of_unit("watt")
    assert times({"tok": 1, "s": -1}, of_unit("watt"), -1) == of_unit("suffix:tok/J")
    assert of_unit("none") is None
    assert written({"J": 2, "s": -1}) == "J·J/s"
