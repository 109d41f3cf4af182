"""What a search was told and what it still waits for; shared by all searchers."""

from __future__ import annotations

from tuner.objective import Score
from tuner.space import Params, SearchSpace

Index = tuple[int, ...]


class History:
    """Told points in order, and points asked for but not told yet. Points are kept as value positions per knob."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.told: list[tuple[Index, Score]] = []
        self.pending: list[Index] = []
        self.seen: set[Index] = {space.index(space.baseline_params)}

    def ask(self, point: Index) -> Params:
        """Note that ``point`` is out for measurement, and give it as values."""
        self.pending.append(point)
        self.seen.add(point)
        return self._space.at(point)

    def expect(self, params: Params) -> None:
        """Note that a point is out for measurement without having been asked for here."""
        self.ask(self._space.index(params))

    def tell(self, params: Params, score: Score) -> None:
        point = self._space.index(params)
        if point in self.pending:
            self.pending.remove(point)
        self.seen.add(point)
        self.told.append((point, score))
