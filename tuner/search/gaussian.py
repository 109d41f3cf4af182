"""Gaussian-process regression over the points of a finite space, small enough to be fitted in milliseconds.

Matern 5/2 with a length scale per knob (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections
4.2 and 5.4). Hyperparameters are the most probable ones under log-normal priors: with ten measurements the likelihood
alone would call every knob decisive or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

Floats = NDArray[np.float64]

_ROOT5 = math.sqrt(5.0)
_JITTER = 1e-9
_SCALE, _SCALE_SPREAD = math.log(0.8), 0.8
"""Prior of a length scale: a knob's effect bends about once over its range."""
_NOISE, _NOISE_SPREAD = math.log(0.02), 1.0
"""Prior of the noise variance, relative to the variance of what was measured."""
_MAX_STEPS = 60


@dataclass(frozen=True, slots=True)
class Posterior:
    """What is believed of some points: mean and standard deviation, without the noise of a measurement."""

    mean: Floats
    deviation: Floats


class Regression:
    """The process after measurements ``y`` at ``x`` (one row each); rows are coordinates, one column a knob or part.

    ``theta`` are hyperparameters to take as they are; None finds the most probable ones. Needs one measurement.
    """

    def __init__(self, x: Floats, y: Floats, theta: Floats | None = None) -> None:
        self._x = x
        self._mean = float(np.mean(y))
        spread = float(np.std(y))
        self._unit = spread if spread > 1e-9 else 1.0
        self._y = (y - self._mean) / self._unit
        self._squares = (x[:, None, :] - x[None, :, :]) ** 2
        self.theta = self._fitted() if theta is None else theta
        kernel = _kernel(self._squares, self.theta)[0]
        self._factor = cholesky(kernel + self._noise() * np.eye(len(x)), lower=True)
        self._weights = cho_solve((self._factor, True), self._y)

    def at(self, points: Floats) -> Posterior:
        """The belief about rows of coordinates."""
        scales = np.exp(self.theta[:-2])
        squares = _distances(points / scales, self._x / scales)
        cross = math.exp(self.theta[-2]) * _matern(np.sqrt(squares))
        solved = solve_triangular(self._factor, cross.T, lower=True)
        variance = math.exp(self.theta[-2]) - np.sum(solved**2, axis=0)
        mean = self._mean + self._unit * (cross @ self._weights)
        return Posterior(mean, self._unit * np.sqrt(np.maximum(variance, 1e-12)))

    def _noise(self) -> float:
        return math.exp(float(self.theta[-1])) + _JITTER

    def _fitted(self) -> Floats:
        usual = np.array([*[_SCALE] * self._x.shape[1], 0.0, _NOISE])
        bounds = [(math.log(0.05), math.log(20.0))] * self._x.shape[1] + [(-4.0, 4.0), (math.log(1e-5), math.log(2.0))]
        found = minimize(
            self._loss,
            usual,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _MAX_STEPS},
        )
        theta: Floats = found.x
        return theta

    def _loss(self, theta: Floats) -> tuple[float, Floats]:
        """Negative log posterior of the hyperparameters and its gradient."""
        kernel, gradients = _kernel(self._squares, theta)
        noise = math.exp(float(theta[-1]))
        count = len(self._y)
        try:
            factor = cholesky(kernel + (noise + _JITTER) * np.eye(count), lower=True)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        weights = cho_solve((factor, True), self._y)
        inverse = cho_solve((factor, True), np.eye(count))
        outer = np.outer(weights, weights) - inverse
        value = 0.5 * float(self._y @ weights) + float(np.sum(np.log(np.diag(factor))))
        slopes = [-0.5 * float(np.sum(outer * gradient)) for gradient in (*gradients, kernel)]
        slopes.append(-0.5 * noise * float(np.trace(outer)))
        center = np.array([*[_SCALE] * (len(theta) - 2), 0.0, _NOISE])
        width = np.array([*[_SCALE_SPREAD] * (len(theta) - 2), 1.0, _NOISE_SPREAD])
        away = (theta - center) / width
        return value + 0.5 * float(away @ away), np.array(slopes) + away / width


def _kernel(squares: Floats, theta: Floats) -> tuple[Floats, list[Floats]]:
    """The covariance of measured points without noise, and its gradient by each log length scale."""
    inverse = np.exp(-2 * theta[:-2])
    distance = np.sqrt(squares @ inverse)
    amplitude = math.exp(float(theta[-2]))
    kernel = amplitude * _matern(distance)
    common = amplitude * 5 / 3 * (1 + _ROOT5 * distance) * np.exp(-_ROOT5 * distance)
    return kernel, [common * squares[:, :, k] * inverse[k] for k in range(len(inverse))]


def _matern(distance: Floats) -> Floats:
    scaled = _ROOT5 * distance
    found: Floats = (1 + scaled + scaled**2 / 3) * np.exp(-scaled)
    return found


def _distances(a: Floats, b: Floats) -> Floats:
    """Squared distances of all rows of ``a`` to all rows of ``b``."""
    squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2 * a @ b.T
    found: Floats = np.maximum(squares, 0.0)
    return found
