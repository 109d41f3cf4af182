"""What a routing policy sees and says. Policies are pure: they read these values and return a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from energyopt.core.units import Seconds


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker that may be chosen, and what the router itself has given it.

    ``prefill_tokens`` are prompt tokens sent, cached ones left out, whose answers have not begun; ``decode_tokens`` the
    contexts of answers under way. ``recent_tokens`` is the work given lately, fading with time. ``speed`` is relative
    to the other workers. ``joules_per_token`` is what a computed token costs here; None is unknown.
    """

    name: str
    prefill_tokens: float = 0.0
    decode_tokens: float = 0.0
    requests: int = 0
    recent_tokens: float = 0.0
    speed: float = 1.0
    joules_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class Overlap:
    """Leading prompt tokens that a worker is thought to hold, by tier ("device", "host", "disk", "shared").

    ``exact``: the engine itself said so; otherwise it is remembered from what was sent there.
    """

    by_tier: Mapping[str, int] = field(default_factory=dict)
    exact: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.by_tier.values())


NO_OVERLAP = Overlap()


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request as policies see it.

    ``overlaps`` is by worker; who is absent holds nothing. ``key`` names what the prompt begins with, so that equal
    prompts meet where nothing else decides; b"" is unknown.
    """

    prompt_tokens: int
    now: Seconds
    session: str | None = None
    key: bytes = b""
    output_tokens: int = 0
    overlaps: Mapping[str, Overlap] = field(default_factory=dict)

    def overlap(self, worker: str) -> Overlap:
        return self.overlaps.get(worker, NO_OVERLAP)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen worker and how many prompt tokens are expected to be in its cache."""

    worker: str
    cached_tokens: int = 0


class RoutingPolicy(Protocol):
    """Chooses a worker. Same requests and loads in the same order give the same choices."""

    def choose(self, request: RouteRequest, workers: Sequence[WorkerLoad]) -> Choice:
        """One of ``workers``, of which there is at least one; all of them are healthy and have room."""
        ...
