"""One worker after the other, whatever they hold or have to do."""

from __future__ import annotations

from collections.abc import Sequence

from .ports import Choice, RouteRequest, WorkerLoad


class RoundRobin:
    """Takes turns by name: whoever was chosen longest ago is next, so that coming and going starves nobody."""

    def __init__(self) -> None:
        self._chosen: dict[str, int] = {}
        self._turn = 0

    def choose(self, request: RouteRequest, workers: Sequence[WorkerLoad]) -> Choice:
        """The worker that was chosen longest ago, or never."""
        self._turn += 1
        chosen = min(workers, key=lambda worker: self._chosen.get(worker.name, 0))
        self._chosen[chosen.name] = self._turn
        return Choice(chosen.name, request.overlap(chosen.name).tokens)
