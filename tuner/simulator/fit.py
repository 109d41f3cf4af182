"""Fits the constants to measured cases: maximum a posteriori, few parameters, priors from physics.

Every parameter is positive and fitted as a logarithm with a normal prior, so that a table which says nothing about it
leaves it where kernel measurements and data sheets put it. Series weigh by the square root of their length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from .constants import Constants
from .mlenergy import Case, predict

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
STEP = 1e-5
"""Of a logarithm: far above what is left of rounding in a prediction, far below what bends it."""
NOISE = 0.08
"""Scatter of one published figure; what the published repeats show."""

PRIORS: dict[str, tuple[float, float]] = {
    "time.memory": (0.83, 0.05),
    "time.compute": (0.70, 0.10),
    "time.attention": (0.75, 0.15),
    "time.link": (0.60, 0.30),
    "time.step": (1.0e-3, 0.50),
    "time.layer": (1.5e-5, 0.60),
    "time.collective": (8.0e-6, 0.30),
    "time.sampling": (700.0, 0.50),
    "time.blend": (1.5, 0.20),
    "power.busy": (0.25, 0.40),
    "power.byte": (1.2e-10, 0.30),
    "power.flop": (1.0e-12, 0.30),
    "workload.chat": (215.0, 0.10),
    "workload.gpqa_context": (0.8, 0.25),
}
"""Median and log-scatter.

Kernel tables give memory (0.83-0.86 of peak), compute (0.70), the joules of a byte and of an operation (122-149 pJ/B,
0.8-1.0 pJ/FLOP) and a floor of about a quarter of the limit. Sampling sorts the vocabulary: a few billion keys a second
on an H100 are several hundred bytes a key of its memory rate.
"""

MOE_PRIORS: dict[str, tuple[float, float]] = {
    "time.moe_layer": (6.0e-5, 0.40),
    "time.routing": (7.0, 0.30),
    "time.expert": (0.75, 0.30),
    "time.expert_fp8": (0.6, 0.30),
    "power.fp8": (0.6, 0.30),
    "workload.fim": (1400.0, 0.20),
}
"""What only a model with experts shows. The published kernel table (19,000 rows for H200, 57-60 us a layer, 7-9 passes
over the routed rows, 0.53 of peak in 16 bits) gives the time of a layer.
"""


SHARES = ("time.memory", "time.compute", "time.attention", "time.link", "time.expert", "time.expert_fp8")
"""Shares of a data sheet's rate: bounded, whatever a table seems to say."""


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
    for index, name in enumerate(names):
        if name in SHARES:
            high[index] = math.log(1.15)
    begin = np.clip(_read(start, names, centre), low + 1e-6, high - 1e-6)
    found = least_squares(
        residuals, begin, partial(_slopes, residuals), loss="soft_l1", f_scale=1.5, bounds=(low, high), max_nfev=100
    )
    fitted = _build(start, names, found.x)
    return fitted.model_copy(update={"origin": "fitted", "provenance": provenance})


def _slopes(residuals: Callable[[Vector], Vector], theta: Vector) -> Matrix:
    """How the residuals change with each parameter, by steps of one length: parameters are logarithms, some near 0."""
    base = residuals(theta)
    moved = theta + STEP * np.eye(len(theta))
    return np.column_stack([(residuals(one) - base) / STEP for one in moved])


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
