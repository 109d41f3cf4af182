"""Errors of predictions, per row, series and class: the arithmetic of ``energyopt accuracy``. Pure.

An *anchored* prediction corrects each series by its own smallest and largest batch: the log-residual of rate and
watts is interpolated over the log of the batch, and only rows in between are scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from .mlenergy import Case, Prediction

Predict = Callable[[Case], Prediction]


@dataclass(frozen=True, slots=True)
class Scored:
    """One row: its relative errors (predicted / measured - 1)."""

    case: Case
    predicted: Prediction

    @property
    def rate_error(self) -> float:
        return self.predicted.rate / self.case.rate - 1

    @property
    def watts_error(self) -> float:
        return self.predicted.watts / self.case.watts - 1

    @property
    def joules_error(self) -> float:
        return self.predicted.joules / self.case.joules - 1


def score(cases: Sequence[Case], predict: Predict, *, anchors: int = 0) -> list[Scored]:
    """Every row, or with two anchors the rows strictly between the ends of each series."""
    if not anchors:
        return [Scored(case, predict(case)) for case in cases]
    scored: list[Scored] = []
    for series in by_series(cases).values():
        if len(series) > 2:
            scored += _anchored(series, predict)
    return scored


def by_series(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Cases of one series each, by rising batch."""
    ordered = sorted(cases, key=lambda case: (case.series, case.batch))
    return {name: list(group) for name, group in groupby(ordered, key=lambda case: case.series)}


def _anchored(series: Sequence[Case], predict: Predict) -> list[Scored]:
    first, last = series[0], series[-1]
    at_first, at_last = predict(first), predict(last)
    low, high = math.log(first.batch), math.log(last.batch)
    rate = (math.log(first.rate / at_first.rate), math.log(last.rate / at_last.rate))
    watts = (math.log(first.watts / at_first.watts), math.log(last.watts / at_last.watts))
    scored = []
    for case in series[1:-1]:
        share = (math.log(case.batch) - low) / (high - low) if high > low else 0.0
        raw = predict(case)
        tokens = raw.rate * math.exp(rate[0] + share * (rate[1] - rate[0]))
        power = raw.watts * math.exp(watts[0] + share * (watts[1] - watts[0]))
        scored.append(Scored(case, Prediction(tokens, power, power * case.devices / tokens)))
    return scored


def summary(scored: Sequence[Scored]) -> dict[str, float | int]:
    """Mean absolute and mean signed relative errors of some rows."""
    errors = {
        "tok_s": [row.rate_error for row in scored],
        "watts": [row.watts_error for row in scored],
        "j_per_token": [row.joules_error for row in scored],
    }
    document: dict[str, float | int] = {"rows": len(scored)}
    for name, values in errors.items():
        document[f"{name}_mape"] = fmean(abs(value) for value in values)
        document[f"{name}_bias"] = fmean(values)
    return document


def series_document(scored: Sequence[Scored]) -> dict[str, object]:
    """Errors and rank correlations of one series, with every row."""
    ordered = sorted(scored, key=lambda row: row.case.batch)
    document: dict[str, object] = dict(summary(ordered))
    if len(ordered) > 2:
        document["spearman_tok_s"] = spearman([r.predicted.rate for r in ordered], [r.case.rate for r in ordered])
        joules = [row.predicted.joules for row in ordered]
        document["spearman_j_per_token"] = spearman(joules, [row.case.joules for row in ordered])
    document["predictions"] = [_row(row) for row in ordered]
    return document


def _row(row: Scored) -> Mapping[str, float | int]:
    return {
        "max_num_seqs": row.case.max_num_seqs,
        "tok_s": row.case.rate,
        "tok_s_predicted": row.predicted.rate,
        "watts": row.case.watts,
        "watts_predicted": row.predicted.watts,
        "j_per_token": row.case.joules,
        "j_per_token_predicted": row.predicted.joules,
    }


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation, ties at their mean rank; 0 where one side is constant."""
    a, b = _ranks(left), _ranks(right)
    mean = (len(a) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    scale = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return covariance / scale if scale else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    return [first[value] + (ordered.count(value) + 1) / 2 for value in values]
