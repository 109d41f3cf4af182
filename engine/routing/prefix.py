"""The worker where the request costs least, given what each one's caches hold of the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from .cost import CostModel
from .ports import Choice, RouteRequest, WorkerLoad
from .ties import TieBreaker


class PrefixAware:
    """Trades cached prefix against load; prompts of which nobody knows anything go by load, then by their beginning."""

    def __init__(self, cost: CostModel, *, seed: int = 0) -> None:
        self._cost, self._ties = cost, TieBreaker(seed)

    def choose(self, request: RouteRequest, workers: Sequence[WorkerLoad]) -> Choice:
        """The cheapest worker."""
        chosen = self._ties.least(
            request, workers, lambda worker: self._cost.of(request, worker, request.overlap(worker.name))
        )
        return Choice(chosen.name, request.overlap(chosen.name).tokens)
