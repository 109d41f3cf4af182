"""Model-based search with Gaussian processes that look at every point of the space.

A space of a study is finite, so nothing has to be climbed: what a measurement promises is computed for all points that
were not asked yet, and the best is the answer. One process models the logarithm of what is maximised, one each relative
constraint; they learn from what each measured, so a configuration that did not fit teaches where things do not fit and
nothing about speed. The promise is the expected improvement times the probability that every constraint is kept
(Gardner et al., Bayesian Optimization with Inequality Constraints, ICML 2014).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr
from threadpoolctl import threadpool_limits

from tuner.objective import FITS, Score
from tuner.space import Params, SearchSpace

from .gaussian import Floats, Posterior, Regression
from .geometry import Geometry
from .history import History, Index
from .start import first_points

STARTUP = 8
"""Points measured before a model is asked, the baseline not counted."""
_LEAST = 0.05
"""A latency below this share of its target is as good as at it: logarithms have no bottom."""
_NEAR = -0.05
"""A constraint that every trial kept by more than this is left out: it would cost a fit and say nothing."""
_SQUARE_ROOT_OF_TAU = np.sqrt(2 * np.pi)


class GpSearcher:
    """Starts with points chosen to differ, then asks the model; points told without being asked for count as start.

    A point in flight is taken to bring what the model expects of it, so several questions at once spread out.
    """

    name = "gp"

    def __init__(self, space: SearchSpace, seed: int, startup: int = STARTUP) -> None:
        self._history, self._geometry = History(space), Geometry(space)
        self._startup = startup
        self._start = first_points(space, self._geometry, startup, seed)

    def ask(self) -> Params | None:
        seen = self._history.seen
        point = None
        if len(seen) <= self._startup:
            point = next((start for start in self._start if start not in seen), None)
        if point is None:
            point = self._best(seen)
        return None if point is None else self._history.ask(point)

    def expect(self, params: Params) -> None:
        self._history.expect(params)

    def tell(self, params: Params, score: Score) -> None:
        self._history.tell(params, score)

    def _best(self, seen: set[Index]) -> Index | None:
        """The unasked point that promises most; the first of equals."""
        free = [place for place, point in enumerate(self._geometry.points) if point not in seen]
        if not free:
            return None
        if not any(score.value is not None for _, score in self._history.told):
            return next((self._geometry.points[place] for place in free), None)
        with threadpool_limits(limits=1, user_api="blas"):  # the cores belong to the engine that is measured
            promise = self._promise(np.array(free))
        return self._geometry.points[free[int(np.argmax(promise))]]

    def _promise(self, free: NDArray[np.int64]) -> Floats:
        """Logarithm of expected improvement times probability of keeping every constraint, per free point."""
        told = self._history.told
        value = self._model({i: s.value for i, (_, s) in enumerate(told) if s.value is not None})
        limits = [self._model(values) for values in _violations([score for _, score in told])]
        points = self._geometry.coordinates[free]
        kept = np.zeros(len(free))
        for limit in limits:
            belief = limit.at(points)
            kept += log_ndtr(-belief.mean / belief.deviation)
        best = self._incumbent(value)
        if best is None:
            return kept
        return kept + _log_improvement(value.at(points), best)

    def _model(self, values: Mapping[int, float]) -> Regression:
        """The process of one figure, by places in the history; what is in flight is believed to be as expected."""
        told, pending = self._history.told, self._history.pending
        x = self._geometry.rows([told[place][0] for place in values])
        y = np.array(list(values.values()))
        fitted = Regression(x, y)
        if not pending:
            return fitted
        ahead = self._geometry.rows(pending)
        return Regression(np.vstack([x, ahead]), np.concatenate([y, fitted.at(ahead).mean]), fitted.theta)

    def _incumbent(self, value: Regression) -> float | None:
        """What the model believes the best feasible configuration to be worth: a lucky measurement is not believed."""
        feasible = [point for point, score in self._history.told if score.feasible and score.value is not None]
        if not feasible:
            return None
        return float(np.max(value.at(self._geometry.rows(feasible)).mean))


def _violations(scores: Sequence[Score]) -> list[dict[int, float]]:
    """Per constraint that matters, what each trial that can tell showed: the logarithm of the share of the target.

    Whether it fits every trial can tell; the others only those that ran.
    """
    found: list[dict[int, float]] = []
    for key in scores[0].constraints:
        values = {
            place: score.constraints[key] if key == FITS else float(np.log(max(_LEAST, 1 + score.constraints[key])))
            for place, score in enumerate(scores)
            if key == FITS or score.fits
        }
        if any(value > _NEAR for value in values.values()):
            found.append(values)
    return found


def _log_improvement(belief: Posterior, best: float) -> Floats:
    """Logarithm of the expected improvement over ``best``; far below it the leading term of its expansion."""
    z = (belief.mean - best) / belief.deviation
    density = np.exp(-0.5 * z**2) / _SQUARE_ROOT_OF_TAU
    plain = np.log(np.maximum(density + z * ndtr(z), 1e-300))
    far = -0.5 * z**2 - np.log(_SQUARE_ROOT_OF_TAU) - 2 * np.log(np.maximum(-z, 1.0))
    found: Floats = np.where(z > -6, plain, far) + np.log(belief.deviation)
    return found
