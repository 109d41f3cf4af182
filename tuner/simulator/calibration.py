"""Fits constants to measured runs: few parameters, each drawn to where it began, with an error on runs held out.

An observation is a measured run and a way to predict it: in steady state for a row of a table, by event simulation of
the same load for a run of the project's own. Ratios count, so observations are compared as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from energyopt.core.errors import ConfigError

from .constants import Constants

NOISE = 0.08
"""Scatter of one measured figure: what published repeats of a run show."""
TIME = {
    "time.memory": 0.5,
    "time.compute": 0.5,
    "time.step": 1.0,
    "time.layer": 1.0,
    "time.sequence": 1.5,
    "time.sampling": 1.0,
}
POWER = {"power.busy": 0.7, "power.byte": 0.5, "power.flop": 0.5}
"""Parameters and how far (in logarithms) a handful of runs may move each from its start."""
SMALLEST = {"time.sequence": 2.0e-5, "time.layer": 1.0e-5, "time.step": 1.0e-4}
"""Where a parameter starts that begins at nothing: a logarithm needs something."""
HIGHEST = {"time.memory": 1.15, "time.compute": 1.15, "power.busy": 1.0}
"""Shares of a data sheet's value: what a share beyond it would explain has another cause."""
NOTHING = -3.0
"""A run that predicts no figure at all (nobody finished in its window) counts as this far off."""
MAX_FOLDS = 8

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured run: ``measured`` by metric (``tok_s``, ``watts``, ``ttft_p90``, ``tpot``), and how to predict it."""

    name: str
    measured: Metrics
    predict: Callable[[Constants], Metrics]

    def errors(self, constants: Constants) -> dict[str, float]:
        """Predicted over measured less one, by metric; a metric that is not predicted is absent."""
        found = self.predict(constants)
        return {name: found[name] / value - 1 for name, value in self.measured.items() if found.get(name)}

    def logs(self, constants: Constants) -> list[float]:
        """Logarithm of predicted over measured for every measured metric; ``NOTHING`` where none is predicted."""
        found = self.predict(constants)
        return [math.log(found[name] / value) if found.get(name) else NOTHING for name, value in self.measured.items()]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants and, by metric, the mean and median absolute error on the runs they were fitted on and on runs held
    out (each predicted by constants that have not seen it).
    """

    constants: Constants
    fitted: Mapping[str, tuple[float, float]]
    held_out: Mapping[str, tuple[float, float]]
    runs: int


def calibrate(observations: Sequence[Observation], start: Constants, *, provenance: str) -> Calibration:
    """Fit on all observations, and on all but a fold for each fold. Raises ConfigError with fewer than two."""
    if len(observations) < 2:
        raise ConfigError(f"{len(observations)} runs cannot calibrate anything: give at least 2.")
    constants = fit_observations(observations, start)
    held_out = [
        error for train, test in _folds(observations) for error in _errors(test, fit_observations(train, start))
    ]
    summary = summarize_errors(held_out)
    known = [summary[name][0] for name in ("watts", "tok_s") if name in summary]
    error = min(1.0, math.sqrt(sum(value**2 for value in known))) if known else start.error
    constants = constants.model_copy(update={"origin": "fitted", "provenance": provenance, "error": error})
    return Calibration(constants, summarize_errors(_errors(observations, constants)), summary, len(observations))


def fit_observations(observations: Sequence[Observation], start: Constants) -> Constants:
    """The most likely constants: squared errors of the observations against the pull to the start."""
    scatters = TIME | (POWER if any("watts" in one.measured for one in observations) else {})
    names = list(scatters)
    centre = np.log([_value(start, name) or SMALLEST.get(name, 1e-12) for name in names])
    width = np.array([scatters[name] for name in names])

    def residuals(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        constants = _with(start, names, theta)
        logs = [log / NOISE for one in observations for log in one.logs(constants)]
        return np.array([*logs, *((theta - centre) / width)])

    high = np.log([HIGHEST.get(name, math.inf) for name in names])
    begin = np.minimum(centre, high - 1e-6)
    bounds = (np.full(len(names), -np.inf), high)
    found = least_squares(residuals, begin, loss="soft_l1", diff_step=1e-2, max_nfev=12, bounds=bounds)
    return _with(start, names, found.x)


def summarize_errors(errors: Sequence[tuple[str, float]]) -> dict[str, tuple[float, float]]:
    """Mean and median absolute error by metric."""
    by_metric: dict[str, list[float]] = {}
    for name, error in errors:
        by_metric.setdefault(name, []).append(abs(error))
    return {name: (fmean(values), median(values)) for name, values in by_metric.items()}


def _errors(observations: Sequence[Observation], constants: Constants) -> list[tuple[str, float]]:
    return [pair for one in observations for pair in one.errors(constants).items()]


def _folds(observations: Sequence[Observation]) -> Iterator[tuple[list[Observation], list[Observation]]]:
    count = min(MAX_FOLDS, len(observations))
    for fold in range(count):
        test = [one for index, one in enumerate(observations) if index % count == fold]
        yield [one for index, one in enumerate(observations) if index % count != fold], test


def _value(constants: Constants, name: str) -> float:
    group, _, key = name.partition(".")
    return float(getattr(getattr(constants, group), key))


def _with(start: Constants, names: Sequence[str], theta: NDArray[np.float64]) -> Constants:
    groups: dict[str, dict[str, float]] = {"time": {}, "power": {}}
    for name, value in zip(names, np.exp(theta), strict=True):
        group, _, key = name.partition(".")
        groups[group][key] = float(value)
    return start.model_copy(
        update={
            "time": start.time.model_copy(update=groups["time"]),
            "power": start.power.model_copy(update=groups["power"]),
        }
    )
