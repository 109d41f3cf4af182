"""Fits the constants to measured cases: maximum a posteriori, few parameters, priors from physics.

Every parameter is positive and fitted as a logarithm with a normal prior, so that a table which says nothing about it
leaves it where kernel measurements and data sheets put it. Series weigh by the square root of their length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from .constants import Constants
from .mlenergy import Case, predict

Vector = NDArray[np.float64]
NOISE = 0.08
"""Scatter of one published figure; what the published repeats show."""

PRIORS: dict[str, tuple[float, float]] = {
    "time.memory": (0.83, 0.05),
    "time.compute": (0.70, 0.10),
    "time.attention": (0.70, 0.25),
    "time.link": (0.60, 0.30),
    "time.step": (1.0e-3, 0.50),
    "time.sequence": (1.0e-5, 0.60),
    "time.layer": (1.5e-5, 0.60),
    "time.collective": (8.0e-6, 0.30),
    "time.blend": (1.5, 0.20),
    "power.busy": (0.55, 0.15),
    "power.byte": (1.0e-10, 0.30),
    "power.flop": (1.0e-12, 0.30),
    "workload.chat": (235.0, 0.10),
    "workload.gpqa": (250.0, 0.20),
}
"""Median and log-scatter.

Kernel tables give memory (0.83-0.86 of peak) and compute (0.70). The busy floor is high because units that wait on
memory draw power too; its size was chosen on the published rows (a floor of 425 W on H100 explains models with
experts), so it is not independent of them.
"""

MOE_PRIORS: dict[str, tuple[float, float]] = {
    "time.moe_layer": (5.0e-5, 0.70),
    "time.expert": (5.0e-7, 0.80),
    "time.quantized": (1.5, 0.40),
    "time.skew": (0.5, 0.50),
    "power.fp8": (0.6, 0.30),
    "workload.fim": (2000.0, 0.20),
}
"""What only a model with experts shows."""


def priors_for(cases: Sequence[Case]) -> dict[str, tuple[float, float]]:
    return PRIORS | MOE_PRIORS if any(case.spec.moe for case in cases) else dict(PRIORS)


def fit(cases: Sequence[Case], start: Constants, *, provenance: str) -> Constants:
    """Constants that explain ``cases``, all of one GPU and class. ``start`` is where the search begins, not its
    prior.
    """
    priors = priors_for(cases)
    names = list(priors)
    centre = np.log([priors[name][0] for name in names])
    scatter = np.array([priors[name][1] for name in names])
    weights = _weights(cases)

    def residuals(theta: Vector) -> Vector:
        constants = _build(start, names, theta)
        rows = [_misfit(case, constants) for case in cases]
        data = (np.array(rows) * weights[:, None] / NOISE).ravel()
        return np.concatenate([data, (theta - centre) / scatter])

    low = np.full(len(names), -np.inf)
    high = np.full(len(names), np.inf)
    low[names.index("time.blend")] = 0.0
    for name in ("time.memory", "time.compute", "time.attention", "time.link"):
        high[names.index(name)] = math.log(1.15)
    begin = np.clip(_read(start, names, centre), low + 1e-6, high - 1e-6)
    found = least_squares(
        residuals, begin, loss="soft_l1", f_scale=1.5, max_nfev=30, diff_step=1e-3, bounds=(low, high)
    )
    fitted = _build(start, names, found.x)
    return fitted.model_copy(update={"origin": "fitted", "provenance": provenance})


def _weights(cases: Sequence[Case]) -> Vector:
    length = Counter(case.series for case in cases)
    raw = np.array([length[case.series] ** -0.5 for case in cases])
    return raw * math.sqrt(len(cases) / float((raw**2).sum()))


def _misfit(case: Case, constants: Constants) -> tuple[float, float, float]:
    found = predict(case, constants)
    rate, watts = math.log(found.rate / case.rate), math.log(found.watts / case.watts)
    return rate, watts, watts - rate


def _build(start: Constants, names: Sequence[str], theta: Vector) -> Constants:
    groups: dict[str, dict[str, float]] = {"time": {}, "power": {}, "workload": {}}
    for name, value in zip(names, np.exp(theta), strict=True):
        group, _, key = name.partition(".")
        groups[group][key] = float(value)
    return start.model_copy(
        update={
            "time": start.time.model_copy(update=groups["time"]),
            "power": start.power.model_copy(update=groups["power"]),
            "workload": {**start.workload, **groups["workload"]},
        }
    )


def _read(start: Constants, names: Sequence[str], centre: Vector) -> Vector:
    """The start as a point of the search: fitted constants as they are, the priors' centre for a fresh set."""
    if start.origin != "fitted":
        return centre
    values = []
    for name, middle in zip(names, centre, strict=True):
        group, _, key = name.partition(".")
        held = start.workload.get(key) if group == "workload" else getattr(getattr(start, group), key)
        values.append(math.log(held) if held else middle)
    return np.array(values)
