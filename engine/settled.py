"""What a step changed: the new tokens, and each request's share of the work."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.records import StepShare

from .batch import Sampled
from .request import Request


@dataclass(slots=True)
class NewToken:
    """What was just appended to ``request``: a token, and those in ``sampled.more``; None: it wanted none.

    The request's ``finish_reason`` is set if the last of them ended it. Never changed; not frozen, for speed: a step
    makes one for each request.
    """

    request: Request
    sampled: Sampled | None

    @property
    def given(self) -> tuple[Sampled, ...]:
        """All the tokens, in order."""
        return () if self.sampled is None else (self.sampled, *self.sampled.more)


@dataclass(frozen=True, slots=True)
class Settled:
    """One step's outcome: ``tokens`` of the requests that sampled, ``shares`` of all that computed, in batch order."""

    tokens: tuple[NewToken, ...]
    shares: tuple[StepShare, ...]

    @property
    def num_tokens(self) -> int:
        """Output tokens of the step: one for each request that sampled, and more where guesses came true."""
        return sum(0 if new.sampled is None else 1 + len(new.sampled.more) for new in self.tokens)
