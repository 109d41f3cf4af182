"""Random search: the reference every other method has to beat."""

from __future__ import annotations

import random

from tuner.objective import Score
from tuner.space import Params, SearchSpace

from .history import History


class RandomSearcher:
    """All valid points in an order drawn from the seed; never repeats, ends when none is left."""

    name = "random"

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._history = History(space)
        self._order = list(space.plan.indices)
        random.Random(seed).shuffle(self._order)

    def ask(self) -> Params | None:
        point = next((p for p in self._order if p not in self._history.seen), None)
        return None if point is None else self._history.ask(point)

    def expect(self, params: Params) -> None:
        self._history.expect(params)

    def tell(self, params: Params, score: Score) -> None:
        self._history.tell(params, score)
