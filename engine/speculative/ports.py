"""Who guesses, and how far: the two decisions of speculation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from energyopt.core.units import Seconds

from ..request import Request


@dataclass(slots=True)
class DraftCounts:
    """Since start. ``by_place`` counts the guesses that came true, the first of a draft at 0. ``depth`` is the last."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    depth: int = 0
    by_place: Counter[int] = field(default_factory=Counter)


class Proposer(Protocol):
    """Guesses at the tokens after a request's newest one. Belongs to the step loop's thread."""

    def propose(self, request: Request, most: int) -> tuple[int, ...]:
        """At most ``most`` tokens; none where there is nothing to go by."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended or lost its place; what was kept about it may go. An unknown one is ignored."""
        ...


Wish = tuple[Request, int]
"""A request, and how many tokens after its newest one are to be guessed at most."""


@dataclass(frozen=True, slots=True)
class Guessed:
    """A draft for each wish, empty where there is none. ``start`` is when a device began to compute them, None if none
    did. ``late``: it read more than the newest tokens, so that it took longer than it usually does."""

    drafts: Sequence[tuple[int, ...]]
    start: Seconds | None = None
    late: bool = False


@runtime_checkable
class BatchProposer(Protocol):
    """Guesses for all requests of a step at once, because that is cheaper. Belongs to the step loop's thread."""

    def propose_all(self, wishes: Sequence[Wish]) -> Guessed:
        """At most as many tokens as each wish says."""
        ...

    def forget(self, request: Request) -> None:
        """As ``Proposer.forget``."""
        ...


class DepthPolicy(Protocol):
    """Decides how many tokens to guess, and learns from what came of it. Belongs to the step loop's thread."""

    def depth(self, requests: int) -> int:
        """How many tokens to guess for each of ``requests`` that decode; 0 guesses nothing in this step."""
        ...

    def verified(self, drafted: int, accepted: int) -> None:
        """One draft's outcome: the first ``accepted`` of its ``drafted`` guesses came true."""
        ...

    def stepped(self, rows: int, start: Seconds, end: Seconds) -> None:
        """A step ended that did nothing but decode, ``rows`` positions in all."""
        ...


class FixedDepth:
    """Always as deep: for tests, and for whoever knows better."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def depth(self, requests: int) -> int:
        return self._depth

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing is learned."""

    def stepped(self, rows: int, start: Seconds, end: Seconds) -> None:
        """Nothing is learned."""
