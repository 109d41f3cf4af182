"""Distances between points: how the search spreads its first points and finds the nearest one not yet asked.

A knob with an order is stretched to [0, 1] by rank; two values of a knob without one are 1 apart. Distances are sums
over knobs.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from energyopt.core.study import Knob
from tuner.space import SearchSpace

from .history import Index

Floats = NDArray[np.float64]


class Geometry:
    """The valid points of a space as rows of a matrix, (points, columns)."""

    def __init__(self, space: SearchSpace) -> None:
        self._knobs = space.knobs
        self.points: tuple[Index, ...] = space.plan.indices
        self._tables = [np.array([_columns(knob, i) for i in range(len(knob.values))]) for knob in self._knobs]
        places = np.array(self.points).reshape(len(self.points), len(self._knobs))
        columns = [table[places[:, k]] for k, table in enumerate(self._tables)]
        self._coords: Floats = np.hstack([np.zeros((len(self.points), 1)), *columns])

    @property
    def coordinates(self) -> Floats:
        """All points as rows, in the order of ``points``."""
        return self._coords

    def rows(self, points: Sequence[Index]) -> Floats:
        """Coordinates of some points, one row each."""
        return np.array([self._place(point) for point in points])

    def nearest(self, point: Index, taken: Collection[Index]) -> Index | None:
        """The valid point closest to ``point`` that is not ``taken``; the first of equals. None if none is left."""
        distances = np.abs(self._coords - self._place(point)).sum(axis=1)
        order = np.argsort(distances, kind="stable")
        return next((self.points[i] for i in order if self.points[i] not in taken), None)

    def stratified(self, count: int, rng: random.Random, taken: Collection[Index]) -> list[Index]:
        """Up to ``count`` distinct valid points near a Latin hypercube: each knob's range is covered evenly.

        (McKay, Beckman and Conover, Technometrics 21(2), 1979.)
        """
        strata = []
        for _ in self._knobs:
            column = list(range(count))
            rng.shuffle(column)
            strata.append(column)
        used, chosen = set(taken), list[Index]()
        for row in range(count):
            ideal = tuple(
                min(int((column[row] + rng.random()) / count * len(knob.values)), len(knob.values) - 1)
                for column, knob in zip(strata, self._knobs, strict=True)
            )
            point = self.nearest(ideal, used)
            if point is None:
                break
            used.add(point)
            chosen.append(point)
        return chosen

    def _place(self, point: Index) -> Floats:
        """One row of the matrix; the leading 0 is there so that a space without knobs has a column."""
        return np.concatenate([[0.0], *(table[i] for table, i in zip(self._tables, point, strict=True))])


def _columns(knob: Knob, index: int) -> Sequence[float]:
    size = len(knob.values)
    if knob.ordinal:
        return [index / (size - 1) if size > 1 else 0.0]
    return [0.5 if index == i else 0.0 for i in range(size)]
