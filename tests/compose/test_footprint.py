"""A study's trials in grams and money, from what the study remembers of what it was asked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from energyopt.compose.footprint import footprint_rates, study_facts, trial_footprint
from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.footprint import FootprintConfig
from energyopt.core.results import EnergyReading, RunResult, Scope, Source, total_energy
from energyopt.core.study import Budget, Origin, Space, StudyRecord, StudySpec, TrialOutcome, TrialRecord
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.core.workload import Session, Turn, Workload
from energyopt.store.memory import MemoryStudyStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def finished(config: FootprintConfig, *, joules: float | None = 500.0) -> tuple[StudyRecord, TrialRecord]:
    """A study asked about ``config`` with one trial of 1,000 output tokens in 10 s, which ended at noon."""
    store = MemoryStudyStore(FakeClock(date=NOON))
    baseline = Deployment(decode=PoolConfig(engine=EngineConfig(model="m")))
    session = Session(id="s", turns=(Turn(text="t", output_tokens=1, think_time=Seconds(0.0)),))
    workload = Workload(name="w", seed=0, sessions=(session,), concurrency=1)
    spec = StudySpec(
        name="s",
        baseline=baseline,
        space=Space(knobs=()),
        workload=workload,
        verify_workload=workload,
        slos=(),
        budget=Budget(trials=1),
    )
    study = store.create_study(spec, study_facts(config))
    trial = store.add_trial(study.id, {}, baseline, Origin.BASELINE)
    store.start_attempt(study.id, trial.number, "me")
    readings = () if joules is None else (reading(joules),)
    result = RunResult(
        window=Seconds(10.0),
        requests=1,
        failed_requests=0,
        prompt_tokens=Tokens(10),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1000),
        energy=total_energy(readings),
        readings=readings,
        power_valid=joules is not None,
    )
    return study, store.finish_trial(study.id, trial.number, TrialOutcome.FEASIBLE, result=result)


def reading(joules: float) -> EnergyReading:
    return EnergyReading(
        device="GPU-1",
        joules=Joules(joules),
        error=Joules(joules / 10),
        scope=Scope.GPU,
        source=Source.COUNTER,
        window=Seconds(10.0),
    )


def test_a_million_tokens() -> None:
    config = FootprintConfig(pue=1.2, grid=360.0, price_per_kilowatt_hour=0.36, currency="EUR")
    found = trial_footprint(*finished(config))
    assert found is not None
    assert found.joules == pytest.approx(500 * 1000 * 1.2)
    assert found.error == pytest.approx(60_000)
    assert found.carbon_grams == pytest.approx(60.0)
    assert found.cost == pytest.approx(0.06)
    assert (found.boundary, found.currency) == ("gpu+pue", "EUR")


def test_the_grid_of_the_trials_own_time(tmp_path: Path) -> None:
    file = tmp_path / "grid.csv"
    rows = "2026-01-01T11:59:50Z,360\n2026-01-01T11:59:55Z,720\n2026-01-01T12:00:00Z,0\n"
    file.write_text(f"time,grams_per_kwh\n{rows}", encoding="utf-8")
    study, trial = finished(FootprintConfig(grid=str(file)))
    found = trial_footprint(study, trial)
    assert found is not None
    assert found.grid_grams_per_joule == pytest.approx(1.5e-4)
    file.unlink()
    with pytest.raises(ConfigError, match="expected grams per kWh, or a CSV file"):
        trial_footprint(study, trial)


def test_what_is_not_known_is_none() -> None:
    assert trial_footprint(*finished(FootprintConfig())) is None
    assert trial_footprint(*finished(FootprintConfig(grid=400.0), joules=None)) is None
    assert footprint_rates(FootprintConfig(), [Scope.GPU]) is None


def test_a_bad_file_is_said_before_the_study_runs() -> None:
    with pytest.raises(ConfigError, match="CSV file"):
        study_facts(FootprintConfig(grid="nowhere.csv"))
