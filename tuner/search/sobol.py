"""Quasi-random search: a scrambled Sobol sequence over the knobs, the second reference beside plain luck."""

from __future__ import annotations

from scipy.stats import qmc

from tuner.objective import Score
from tuner.space import Params, SearchSpace

from .geometry import Geometry
from .history import History, Index

_AHEAD = 256
"""Points drawn at once; a power of two keeps the sequence balanced."""


class SobolSearcher:
    """Valid points near a Sobol sequence (Owen's scrambling); never repeats, ends when none is left.

    A point of the sequence that is invalid or known gives way to the nearest that is neither.
    """

    name = "sobol"

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._history, self._geometry = History(space), Geometry(space)
        self._sizes = [len(knob.values) for knob in space.knobs]
        self._engine = qmc.Sobol(max(1, len(self._sizes)), scramble=True, rng=seed)
        self._ideal: list[Index] = []

    def ask(self) -> Params | None:
        """The point's place in the sequence is how many are known, so a resumed search goes on where it was."""
        seen = self._history.seen
        point = self._geometry.nearest(self._at(len(seen) - 1), seen)
        return None if point is None else self._history.ask(point)

    def expect(self, params: Params) -> None:
        self._history.expect(params)

    def tell(self, params: Params, score: Score) -> None:
        self._history.tell(params, score)

    def _at(self, place: int) -> Index:
        while len(self._ideal) <= place:
            for row in self._engine.random(_AHEAD):
                self._ideal.append(tuple(int(x * size) for x, size in zip(row, self._sizes, strict=False)))
        return self._ideal[place]
