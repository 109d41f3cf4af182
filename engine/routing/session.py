"""The worker that served the session before, unless staying costs more than its cached prefix is worth."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.units import Seconds

from .cost import CostModel
from .ports import Choice, Overlap, RouteRequest, WorkerLoad
from .ties import TieBreaker

IDLE = Seconds(900.0)
"""After this long without a request a session counts as new: its blocks are likely gone (Dynamo's time to live)."""
MAX_SESSIONS = 100_000


@dataclass(frozen=True, slots=True)
class _Bound:
    worker: str
    tokens: int
    at: Seconds


class SessionAware:
    """Binds each session to a worker and weighs every later request anew.

    Workers are credited with what they are known to hold. Where nothing is known of a prompt's content, the bound
    worker is credited with the session's last prompt. Requests without a session go by prefix and load. A binding to a
    worker that is not among the choices is replaced, and of ``MAX_SESSIONS`` bindings the oldest is forgotten.
    """

    def __init__(self, cost: CostModel, *, seed: int = 0, idle: Seconds = IDLE) -> None:
        self._cost, self._ties, self._idle = cost, TieBreaker(seed), idle
        self._bound: OrderedDict[str, _Bound] = OrderedDict()

    def choose(self, request: RouteRequest, workers: Sequence[WorkerLoad]) -> Choice:
        """The bound worker, or the one that is cheaper by more than its cache saves."""
        bound = self._binding(request)

        def held(worker: WorkerLoad) -> Overlap:
            known = request.overlap(worker.name)
            if bound is None or worker.name != bound.worker or known.exact or request.key:
                return known
            remembered = min(bound.tokens, request.prompt_tokens)
            return known if known.tokens >= remembered else Overlap({"device": remembered})

        def cost(worker: WorkerLoad) -> float:
            return self._cost.of(request, worker, held(worker))

        chosen = self._ties.least(request, workers, cost)
        home = next((worker for worker in workers if bound and worker.name == bound.worker), None)
        if home is not None and cost(home) <= cost(chosen):
            chosen = home
        self._bind(request, chosen.name)
        return Choice(chosen.name, held(chosen).tokens)

    def _binding(self, request: RouteRequest) -> _Bound | None:
        bound = self._bound.get(request.session) if request.session else None
        return bound if bound is not None and request.now - bound.at <= self._idle else None

    def _bind(self, request: RouteRequest, worker: str) -> None:
        if not request.session:
            return
        self._bound[request.session] = _Bound(worker, request.prompt_tokens, request.now)
        self._bound.move_to_end(request.session)
        if len(self._bound) > MAX_SESSIONS:
            self._bound.popitem(last=False)
