"""What it costs to give a request to a worker, in tokens of prompt to compute; the form is Dynamo's KV router's.

cost = prefill queued there + prefill left for this request after what its caches save + decode load, weighted, plus
what the worker did lately, weighted, so that a fleet that is mostly idle evens out too, plus joules if asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .ports import Overlap, RouteRequest, WorkerLoad

TIER_CREDIT: Mapping[str, float] = {"device": 1.0, "host": 0.75, "disk": 0.25, "shared": 0.25}
"""Share of a cached token's computing that is saved when it has to come from that tier (Dynamo's router docs)."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Weights. ``decode`` and ``recent`` are prompt tokens per token of that load; ``joules`` prompt tokens per joule.

    ``recent`` bounds what evenness may cost: a session leaves an idle worker only if the tokens of its prefix are fewer
    than that share of the work by which the worker is ahead.
    ``joules`` 0 leaves energy out; a worker whose joules are not known then costs none, so either all should be known
    or the weight be 0.
    """

    tier_credit: Mapping[str, float] = field(default_factory=lambda: TIER_CREDIT)
    decode: float = 0.1
    recent: float = 0.1
    joules: float = 0.0

    def credit(self, overlap: Overlap, prompt_tokens: int) -> float:
        """Prompt tokens whose computing is saved."""
        saved = sum(self.tier_credit.get(tier, 0.0) * tokens for tier, tokens in overlap.by_tier.items())
        return min(saved, float(prompt_tokens))

    def of(self, request: RouteRequest, worker: WorkerLoad, overlap: Overlap) -> float:
        """The cost of ``request`` at ``worker`` if it holds ``overlap``."""
        fresh = request.prompt_tokens - self.credit(overlap, request.prompt_tokens)
        cost = fresh + self.load(worker)
        if self.joules and worker.joules_per_token is not None:
            cost += self.joules * worker.joules_per_token * (fresh + request.output_tokens)
        return cost

    def load(self, worker: WorkerLoad) -> float:
        """The part that does not depend on the request."""
        return (
            worker.prefill_tokens + self.decode * worker.decode_tokens + self.recent * worker.recent_tokens
        ) / worker.speed
