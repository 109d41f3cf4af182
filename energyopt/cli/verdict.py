"""The end of a study on a terminal: table, plot, saving, launch command, and where everything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from energyopt.compose.footprint import trial_footprint
from energyopt.compose.results import Session, launch_command, study_summary
from energyopt.core.footprint import Footprint
from energyopt.core.study import StudyState, TrialRecord
from energyopt.core.units import format_si
from tuner.nearest import explain_infeasible
from tuner.summary import StudySummary

from .footprint import footprint_lines
from .tables import plot_pareto, result_table


def print_outcome(console: Console, session: Session, study_id: str) -> None:
    """Everything a person wants after a study, most important first."""
    summary = study_summary(session, study_id)
    console.print()
    console.print(result_table(summary))
    plot_pareto(console, summary)
    console.print()
    console.print(verdict(summary, session.store.trials(study_id)), markup=False)
    for name, found in _footprints(session, summary).items():
        words = "; ".join(footprint_lines(found, idle=True))
        console.print(f"A million output tokens, {name}: {format_si(found.joules, 'J')}; {words}", markup=False)
    command = launch_command(session, study_id)
    if command is not None:
        console.print("\nServe the winner:", style="bold")
        console.print(f"  {command}", markup=False, soft_wrap=True)
    console.print("\nStored:", style="bold")
    console.print(f"  study {summary.study.id} in {session.url}", markup=False, soft_wrap=True)
    for artifact in session.store.artifacts(study_id):
        console.print(f"  {artifact.name}: {artifact.path}", markup=False, soft_wrap=True)


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
        head = (
            f"Trial {found.trial} uses {amount} energy per token than the baseline "
            f"({found.confidence:.0%} interval of the saving {low} to {high}, {found.pairs} interleaved pairs): "
            f"{checked}."
        )
    return f"{head} {found.note}".strip()


def summary_json(session: Session, study_id: str) -> dict[str, object]:
    """The same as one document."""
    summary = study_summary(session, study_id)
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
        "command": launch_command(session, study_id),
        "database": session.url,
        "artifacts": [artifact.model_dump(mode="json") for artifact in session.store.artifacts(study_id)],
    }


def _footprints(session: Session, summary: StudySummary) -> dict[str, Footprint]:
    """Of the baseline and the best trial, as far as they are known."""
    named = {"baseline": summary.baseline, "best": summary.best}
    trials = {trial.number: trial for trial in session.store.trials(summary.study.id)}
    found = {name: trial_footprint(summary.study, trials[row.trial]) for name, row in named.items() if row is not None}
    return {name: footprint for name, footprint in found.items() if footprint is not None}


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value * 100:.1f} %"
