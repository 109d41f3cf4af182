"""Carbon and cost as every verb offers them: read once, applied to whatever the verb measures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from energyopt.core.config import parse_config
from energyopt.core.footprint import Footprint, FootprintConfig
from energyopt.core.results import EnergyTotal, Scope
from energyopt.core.study import StudyRecord, TrialRecord
from energyopt.core.units import Joules
from telemetry.footprint import Rates
from tuner.saved import DailySaving

MACHINE_KEY = "footprint"
"""Where a study keeps what it was asked about carbon and cost, among the facts of its machine."""
MILLION = 1_000_000


def footprint_rates(config: FootprintConfig, scopes: Iterable[Scope]) -> Rates | None:
    """The rates of ``config``; None if it asks for nothing. Raises ConfigError for a file that is no series."""
    return None if config.empty else Rates(config, scopes)


def study_facts(config: FootprintConfig) -> Mapping[str, str]:
    """What a study remembers of ``config``; nothing of one that asks for nothing. Raises ConfigError for a bad file."""
    if config.empty:
        return {}
    Rates(config, ())
    return {MACHINE_KEY: config.model_dump_json(exclude_none=True)}


def daily_carbon(
    study: StudyRecord, saved: DailySaving, scopes: Iterable[Scope], day: datetime
) -> tuple[float, float, float] | None:
    """Grams of CO2e of what is saved spread over the day that ends at ``day``, with the bounds of those joules.

    None without an intensity, or without bounds. Raises ConfigError if the study's file of grid intensities is gone.
    """
    facts = study.machine.get(MACHINE_KEY)
    if facts is None or saved.low is None or saved.high is None:
        return None
    rates = Rates(parse_config(FootprintConfig, json.loads(facts)), scopes)
    unit = EnergyTotal(joules=Joules(1.0), error=Joules(0.0), sources=())
    per_joule = rates.of(unit, day - timedelta(days=1), day).carbon_grams
    return None if per_joule is None else (per_joule * saved.joules, per_joule * saved.low, per_joule * saved.high)


def trial_footprint(study: StudyRecord, trial: TrialRecord) -> Footprint | None:
    """What a million output tokens of a finished trial took; None where joules, or the study's settings, are missing.

    Raises ConfigError if the study's file of grid intensities is gone.
    """
    facts, result = study.machine.get(MACHINE_KEY), trial.result
    if facts is None or result is None or result.energy is None or result.joules is None or trial.ended is None:
        return None
    if not result.output_tokens:
        return None
    config = parse_config(FootprintConfig, json.loads(facts))
    scale = MILLION / result.output_tokens
    energy = EnergyTotal(
        joules=Joules(result.energy.joules * scale),
        error=Joules(result.energy.error * scale),
        sources=result.energy.sources,
    )
    start = trial.ended - timedelta(seconds=result.window)
    return Rates(config, [reading.scope for reading in result.readings]).of(energy, start, trial.ended)
