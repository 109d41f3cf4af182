"""Agentic session trees from a seed: long shared fronts, small additions, think time, sub-agents.

The default shape follows the medians and tails of 710 recorded coding sessions (kv-cache-tester): 46 calls a session,
727 uncached input tokens a call, 216 output tokens, 10 s of think time; ``scaled`` makes smaller ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

from .lengths import Lengths
from .synthetic import BLOCK_TOKENS, Growth, take_id
from .trace import Agent, Call, Trace, TraceSession

_FIRST = Lengths(median=2000, spread=1.0, low=64, high=60_000)
_ADDED = Lengths(median=727, spread=1.4, low=16, high=94_000)
_OUTPUT = Lengths(median=216, spread=1.0, low=8, high=4096)
_CALLS = Lengths(median=46, spread=1.1, low=2, high=341)
_THINK = Lengths(median=10, spread=1.6, low=1, high=3000)
_SERVE = Lengths(median=6, spread=0.8, low=1, high=60)
_BRANCH_CALLS = Lengths(median=8, spread=0.6, low=2, high=40)


@dataclass(frozen=True, slots=True)
class AgenticShape:
    """``shared_tokens`` (system prompt and tools) are common to all sessions; a session's context ends at ``limit``.

    ``think`` and ``serve`` are seconds drawn like lengths; a sub-agent is started after a call with probability
    ``branching``; its prompts begin with a front of its own, common to all sub-agents, of ``branch_tokens``.
    """

    shared_tokens: int = 15_360
    first: Lengths = _FIRST
    added: Lengths = _ADDED
    output: Lengths = _OUTPUT
    calls: Lengths = _CALLS
    think: Lengths = _THINK
    serve: Lengths = _SERVE
    branching: float = 0.01
    branch_calls: Lengths = _BRANCH_CALLS
    branch_tokens: int = 8_192
    limit: int = 200_000

    def __post_init__(self) -> None:
        if not (0 <= self.branching <= 1 and self.shared_tokens >= 0 and self.branch_tokens >= 0 and self.limit >= 1):
            raise ConfigError("An agentic shape needs branching from 0 to 1 and token counts of at least 0.")

    def scaled(self, by: int) -> AgenticShape:
        """Token counts and times divided by ``by``; the number of calls stays. Raises ConfigError below 1."""
        if by < 1:
            raise ConfigError(f"A shape is scaled by a divisor of at least 1, not {by}.")

        def smaller(lengths: Lengths) -> Lengths:
            bounds = [max(1, value // by) for value in (lengths.low, lengths.median, lengths.high)]
            return Lengths(low=bounds[0], median=bounds[1], high=bounds[2], spread=lengths.spread)

        return replace(
            self,
            shared_tokens=self.shared_tokens // by,
            first=smaller(self.first),
            added=smaller(self.added),
            output=smaller(self.output),
            think=smaller(self.think),
            serve=smaller(self.serve),
            branch_tokens=self.branch_tokens // by,
            limit=max(1, self.limit // by),
        )


def agentic_trace(seed: int, *, sessions: int, shape: AgenticShape | None = None, name: str = "agentic") -> Trace:
    """Closed-loop session trees; equal arguments give an equal trace. Raises ConfigError for no sessions."""
    if sessions < 1:
        raise ConfigError(f"sessions {sessions} must be >= 1.")
    shape = shape or AgenticShape()
    rng, ids = random.Random(f"{name}/{seed}"), [0]
    fronts = [tuple(take_id(ids) for _ in range(n // BLOCK_TOKENS)) for n in (shape.shared_tokens, shape.branch_tokens)]
    made = tuple(_Tree(rng, shape, ids, fronts).session(f"{name}-{seed}-{number}") for number in range(sessions))
    return Trace(f"{name}-{seed}", made, BLOCK_TOKENS)


class _Tree:
    """Draws one session."""

    def __init__(self, rng: random.Random, shape: AgenticShape, ids: list[int], fronts: list[tuple[int, ...]]) -> None:
        self._rng, self._shape, self._ids, self._fronts = rng, shape, ids, fronts
        self._branches: list[Agent] = []

    def session(self, name: str) -> TraceSession:
        root = self._line("root", self._shape.calls.draw(self._rng), 0.0, front=0)
        return TraceSession(name, (root, *self._branches))

    def _line(self, name: str, count: int, clock: float, front: int) -> Agent:
        """One agent from ``clock`` on; the root's sub-agents are drawn on the way, and it waits for each."""
        shape, rng = self._shape, self._rng
        prompt, begin = Growth(self._ids, self._fronts[front]), clock
        blocks, calls = prompt.grow(shape.first.draw(rng)), list[Call]()
        while len(calls) < count and (prompt.tokens <= shape.limit or not calls):
            served, output = float(shape.serve.draw(rng)), shape.output.draw(rng)
            think = 0.0 if not calls else float(shape.think.draw(rng))
            clock += think
            calls.append(
                Call(prompt.tokens, output, blocks, Seconds(clock), Seconds(think), Seconds(served), model=name[:4])
            )
            clock += served
            if front == 0 and rng.random() < shape.branching:
                clock = self._branch(len(calls), clock)
            prompt.grow(output)
            blocks = prompt.grow(shape.added.draw(rng))
        system = len(self._fronts[front]) * BLOCK_TOKENS
        return Agent(name, tuple(calls), start=Seconds(begin), duration=Seconds(clock - begin), system_tokens=system)

    def _branch(self, after: int, clock: float) -> float:
        name = f"agent_{len(self._branches) + 1:03d}"
        branch = self._line(name, self._shape.branch_calls.draw(self._rng), clock, front=1)
        self._branches.append(replace(branch, parent=0, after=after, kind="Explore"))
        return clock + (branch.duration or 0.0)
