"""The end of a study on a terminal: table, plot, saving, launch command, and where everything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from energyopt.compose.footprint import daily_carbon, trial_footprint
from energyopt.compose.results import (
    Launching,
    Session,
    launch_command,
    saved_per_day,
    study_references,
    study_summary,
    winner_worth,
)
from energyopt.core.footprint import Footprint
from energyopt.core.study import StudyState, TrialRecord, Value
from energyopt.core.units import format_si
from tuner.nearest import explain_infeasible
from tuner.references import Reference
from tuner.summary import StudySummary, row_value
from tuner.why import KnobWorth

from .footprint import footprint_lines
from .tables import plot_history, plot_pareto, result_table


def print_outcome(console: Console, session: Session, study_id: str) -> None:
    """Everything a person wants after a study, most important first."""
    summary = study_summary(session, study_id)
    console.print()
    console.print(result_table(summary))
    plot_pareto(console, summary)
    luck = study_references(session, study_id)
    plot_history(console, summary, luck)
    console.print()
    console.print(verdict(summary, session.store.trials(study_id)), markup=False)
    for line in _luck_lines(summary, luck):
        console.print(line, markup=False)
    for line in [*_why_lines(winner_worth(session, study_id)), *_daily_lines(session, summary)]:
        console.print(line, markup=False)
    for name, found in _footprints(session, summary).items():
        words = "; ".join(footprint_lines(found, idle=True))
        console.print(f"A million output tokens, {name}: {format_si(found.joules, 'J')}; {words}", markup=False)
    _print_launch(console, launch_command(session, study_id))
    console.print("\nStored:", style="bold")
    console.print(f"  study {summary.study.id} in {session.url}", markup=False, soft_wrap=True)
    for artifact in session.store.artifacts(study_id):
        console.print(f"  {artifact.name}: {artifact.path}", markup=False, soft_wrap=True)


def _print_launch(console: Console, launching: Launching | None) -> None:
    """The command, and what it cannot carry; or why there is none."""
    if launching is None:
        return
    console.print("\nServe the winner:", style="bold")
    for line in (launching.shell, launching.remark):
        if line:
            console.print(f"  {line}", markup=False, soft_wrap=True)


def verdict(summary: StudySummary, trials: Sequence[TrialRecord]) -> str:
    """The outcome in words; never a saving without its interval."""
    found = summary.recommendation
    if summary.study.state is StudyState.NO_FEASIBLE:
        return f"There is no recommendation. {explain_infeasible(trials)}"
    if found is None:
        return summary.study.error or f"The study is {summary.study.state}; there is no recommendation yet."
    checked = "verified" if found.verified else "NOT verified"
    if summary.baseline and found.trial == summary.baseline.trial:
        return found.note or f"The baseline is the best configuration found ({checked})."
    if found.saving is None:
        head = f"Trial {found.trial} is recommended ({checked}); no joules were measured."
    else:
        low, high = (_percent(found.saving_low), _percent(found.saving_high))
        amount = f"{_percent(abs(found.saving))} {'less' if found.saving >= 0 else 'MORE'}"
        bounds = (
            "no interval"
            if found.saving_low is None
            else f"{found.confidence:.0%} interval of the saving {low} to {high}"
        )
        head = (
            f"Trial {found.trial} uses {amount} energy per token than the baseline "
            f"({bounds}, {found.pairs} interleaved pairs): {checked}."
        )
    return f"{head} {found.note}".strip()


def summary_json(session: Session, study_id: str) -> dict[str, object]:
    """The same as one document."""
    summary, launching = study_summary(session, study_id), launch_command(session, study_id)
    return {
        "study": summary.study.id,
        "state": summary.study.state.value,
        "error": summary.study.error,
        "objective": summary.objective,
        "slos": list(summary.study.spec.slos),
        "recommendation": None if summary.recommendation is None else summary.recommendation.model_dump(mode="json"),
        "baseline": None if summary.baseline is None else asdict(summary.baseline),
        "best": None if summary.best is None else asdict(summary.best),
        "footprint_per_million_output_tokens": {
            name: found.model_dump(mode="json") for name, found in _footprints(session, summary).items()
        },
        "pareto": [asdict(row) for row in summary.front],
        "trials": [asdict(row) for row in summary.rows],
        "verification": [asdict(row) for row in summary.verification],
        "command": None if launching is None else launching.shell,
        "command_remark": None if launching is None else launching.remark,
        "references": [asdict(one) | {"reached": one.reached} for one in study_references(session, study_id)],
        "why": [asdict(one) for one in winner_worth(session, study_id)],
        "saved_per_day": None if (saved := saved_per_day(session, study_id)) is None else asdict(saved),
        "database": session.url,
        "artifacts": [artifact.model_dump(mode="json") for artifact in session.store.artifacts(study_id)],
    }


def _why_lines(worths: Sequence[KnobWorth]) -> list[str]:
    """What the winner's settings bring, each against the baseline's; one that brings nothing is left out."""
    moved = [one for one in worths if one.winner != one.baseline and abs(one.worth) >= 0.005]
    if not moved:
        return []
    words = ", ".join(
        f"{one.path.rsplit('.', 1)[-1]} {_setting(one.baseline)} -> {_setting(one.winner)} {one.worth:+.0%}"
        for one in moved
    )
    most = max(worths, key=lambda one: one.importance)
    return [
        f"Why this one (a model of the trials, each setting alone): {words}. "
        f"Over the whole space {most.path.rsplit('.', 1)[-1]} matters most ({most.importance:.0%} of the variance)."
    ]


def _luck_lines(summary: StudySummary, references: Sequence[Reference]) -> list[str]:
    """What random and Sobol search would be expected to have found, beside the best that was measured."""
    best = row_value(summary.best, summary.objective) if summary.best else None
    if not references or not best:
        return []
    words = ", ".join(f"{one.name} {one.reached / best:.0%}" for one in references)
    return [f"With as many trials luck would be expected to reach, of the best (a model of the trials): {words}."]


def _daily_lines(session: Session, summary: StudySummary) -> list[str]:
    """What the saving is in a day at the load that was measured; never without its interval and its source."""
    saved, study = saved_per_day(session, summary.study.id), summary.study
    if saved is None or saved.low is None or saved.high is None:
        return []
    low, high = (f"{joules / 3.6e6:.3g}" for joules in (saved.low, saved.high))
    trial = next(t for t in session.store.trials(study.id) if summary.baseline and t.number == summary.baseline.trial)
    scopes = [reading.scope for reading in trial.result.readings] if trial.result else []
    grams = daily_carbon(study, saved, scopes, trial.ended or study.updated)
    carbon, sure = "", f"{saved.confidence:.0%} interval {low} to {high}, with the error of the joules: {saved.source}"
    if grams is not None:
        mean, least, most = (format_si(value, "g") for value in grams)
        carbon = f"; {mean} of CO2e ({least} to {most})"
    return [
        f"At the baseline's load ({format_si(saved.tokens, 'tokens')} a day) that is {saved.joules / 3.6e6:.3g} kWh "
        f"a day ({sure}){carbon}."
    ]


def _setting(value: Value) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _footprints(session: Session, summary: StudySummary) -> dict[str, Footprint]:
    """Of the baseline and the best trial, as far as they are known."""
    named = {"baseline": summary.baseline, "best": summary.best}
    trials = {trial.number: trial for trial in session.store.trials(summary.study.id)}
    found = {name: trial_footprint(summary.study, trials[row.trial]) for name, row in named.items() if row is not None}
    return {name: footprint for name, footprint in found.items() if footprint is not None}


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value * 100:.1f} %"
