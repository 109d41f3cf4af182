"""The worker with the least to do, whatever it holds."""

from __future__ import annotations

from collections.abc import Sequence

from .cost import CostModel
from .ports import Choice, RouteRequest, WorkerLoad
from .ties import TieBreaker


class LeastLoaded:
    """Compares queued prompts, contexts under way and recent work; ties take turns or go by key."""

    def __init__(self, cost: CostModel, *, seed: int = 0) -> None:
        self._cost, self._ties = cost, TieBreaker(seed)

    def choose(self, request: RouteRequest, workers: Sequence[WorkerLoad]) -> Choice:
        """The least loaded worker."""
        chosen = self._ties.least(request, workers, self._cost.load)
        return Choice(chosen.name, request.overlap(chosen.name).tokens)
