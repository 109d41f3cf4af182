"""A study as a person reads it: baseline, best, Pareto set and what was verified, as plain rows.

Pure: terminal table, plot and report all draw from here, so that no two screens disagree. The Pareto front is over
the study's objective and the p90 of the time per output token; infeasible trials, repetitions, and configurations that
missed an SLO when they were measured again, are shown but never on the front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from energyopt.core.pareto import pareto_front
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, Recommendation, StudyRecord, TrialOutcome, TrialRecord, TrialState, Value

from .cuts import judged


@dataclass(frozen=True, slots=True)
class Row:
    """One trial's figures. Every figure that was not measured is None; ``energy_error`` is relative to the joules.

    ``withdrawn``: it kept every SLO, and the same configuration missed one, or failed, when it was measured again.
    """

    trial: int
    origin: Origin
    params: Mapping[str, Value]
    outcome: str
    feasible: bool
    error: str | None
    tokens_per_joule: float | None
    joules_per_request: float | None
    energy_error: float | None
    energy_source: str | None
    output_rate: float | None
    ttft_p90: float | None
    itl_p99: float | None
    tpot_p90: float | None
    hit_rate: float | None
    window: float | None
    violations: Mapping[str, float | None]
    on_front: bool = False
    withdrawn: bool = False

    @property
    def kept(self) -> bool:
        """Whether it kept every SLO, and nothing that was measured later says otherwise."""
        return self.feasible and not self.withdrawn

    @property
    def stands(self) -> bool:
        """Whether it is a point of the space that has kept every SLO whenever it was measured."""
        return self.kept and not self.origin.repeats

    @property
    def word(self) -> str:
        """The outcome as a table says it."""
        return "withdrawn" if self.withdrawn else self.outcome


@dataclass(frozen=True, slots=True)
class StudySummary:
    """Everything a screen shows of a study. ``best`` is the recommended trial, or the best so far of a running one."""

    study: StudyRecord
    rows: tuple[Row, ...]
    verification: tuple[Row, ...]
    baseline: Row | None
    best: Row | None
    front: tuple[Row, ...]
    recommendation: Recommendation | None
    objective: str

    @property
    def measured_joules(self) -> bool:
        return any(row.tokens_per_joule is not None for row in self.rows)

    @property
    def estimated(self) -> bool:
        """True if any joule shown is an estimate or a simulation; every screen must then say so."""
        weak = ("estimated", "simulated")
        return any(word in (row.energy_source or "") for row in self.rows for word in weak)


def summarize_study(study: StudyRecord, trials: Sequence[TrialRecord]) -> StudySummary:
    """The summary of a study at any moment of its life."""
    objective = study.spec.maximize
    done = [judged(trial, trials) for trial in trials if trial.state is TrialState.DONE]
    again = [trial for trial in done if trial.origin.repeats and trial.outcome is not TrialOutcome.FEASIBLE]
    missed = {trial.deployment.digest() for trial in again}
    searched = [trial for trial in done if not trial.origin.verifies]
    rows = [_row(trial, withdrawn=trial.deployment.digest() in missed) for trial in searched]
    points = [row for row in rows if row.stands]
    front = {row.trial for row in pareto_front(points, lambda row: _objectives(row, objective))}
    rows = [replace(row, on_front=row.trial in front) for row in rows]
    return StudySummary(
        study=study,
        rows=tuple(rows),
        verification=tuple(_row(trial) for trial in done if trial.origin.verifies),
        baseline=next((row for row in rows if row.origin is Origin.BASELINE), None),
        best=_best(rows, study.recommendation, objective),
        front=tuple(sorted((row for row in rows if row.on_front), key=lambda row: -(row_value(row, objective) or 0.0))),
        recommendation=study.recommendation,
        objective=objective,
    )


def row_value(row: Row, objective: str) -> float | None:
    """The figure that the study maximises."""
    return row.tokens_per_joule if objective == "tokens_per_joule" else row.output_rate


def _objectives(row: Row, objective: str) -> tuple[float | None, float | None]:
    return row_value(row, objective), (None if row.tpot_p90 is None else -row.tpot_p90)


def _best(rows: Sequence[Row], recommendation: Recommendation | None, objective: str) -> Row | None:
    if recommendation is not None:
        return next((row for row in rows if row.trial == recommendation.trial), None)
    feasible = [row for row in rows if row.stands and row_value(row, objective) is not None]
    return max(feasible, key=lambda row: row_value(row, objective) or 0.0, default=None)


def _row(trial: TrialRecord, *, withdrawn: bool = False) -> Row:
    result = trial.result
    return Row(
        trial=trial.number,
        origin=trial.origin,
        params=trial.params,
        outcome=trial.outcome.value if trial.outcome else "unknown",
        feasible=result is not None and result.feasible,
        error=trial.error,
        tokens_per_joule=result.tokens_per_joule if result else None,
        joules_per_request=result.joules_per_request if result else None,
        energy_error=_energy_error(result),
        energy_source=result.energy.label if result and result.energy and result.power_valid else None,
        output_rate=result.output_rate if result else None,
        ttft_p90=_latency(result, "ttft", "p90"),
        itl_p99=_latency(result, "itl", "p99"),
        tpot_p90=_latency(result, "tpot", "p90"),
        hit_rate=result.hit_rate if result else None,
        window=result.window if result else None,
        violations={v.slo: v.violation for v in result.verdicts} if result else {},
        withdrawn=withdrawn and result is not None and result.feasible,
    )


def _energy_error(result: RunResult | None) -> float | None:
    """Half-width of the interval of the joules, relative to them."""
    if result is None or result.energy is None or not result.joules:
        return None
    return result.energy.error / result.joules


def _latency(result: RunResult | None, metric: str, statistic: str) -> float | None:
    summary = result.latencies.get(metric) if result else None
    return None if summary is None else float(getattr(summary, statistic))
