"""Token-length workloads from a seed: turns of drawn lengths behind shared system prompts, with or without arrivals."""

from __future__ import annotations

import random
from dataclasses import dataclass

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload

from .arrivals import Arrivals
from .lengths import Drawn, UniformLength
from .trace import Agent, Call, Trace, TraceSession

BLOCK_TOKENS = 64
_INPUT, _OUTPUT, _TURNS = UniformLength(256, 256), UniformLength(64, 64), UniformLength(1, 1)


class Growth:
    """Block ids of a prompt that only grows: full blocks keep their id, new ones get the next.

    ``ids`` counts over the whole trace; a prompt may begin with ``shared`` blocks of others.
    """

    def __init__(self, ids: list[int], shared: tuple[int, ...] = (), block: int = BLOCK_TOKENS) -> None:
        self._ids, self._block = ids, block
        self._blocks = list(shared)
        self.tokens = len(shared) * block

    def grow(self, tokens: int) -> tuple[int, ...]:
        """Append ``tokens`` and return the ids of all full blocks."""
        self.tokens += tokens
        while len(self._blocks) < self.tokens // self._block:
            self._blocks.append(take_id(self._ids))
        return tuple(self._blocks)


def take_id(ids: list[int]) -> int:
    """The next free id; ``ids`` holds it as its only entry."""
    ids[0] += 1
    return ids[0] - 1


@dataclass(frozen=True, slots=True)
class TextShape:
    """``input`` and ``output`` tokens of each turn, ``turns`` a session, ``shared_tokens`` in front of every prompt.

    ``systems`` different shared prompts are dealt to the sessions in turn. Shared tokens are cut to whole blocks.
    """

    input: Drawn = _INPUT
    output: Drawn = _OUTPUT
    turns: Drawn = _TURNS
    shared_tokens: int = 0
    systems: int = 1

    def __post_init__(self) -> None:
        if self.shared_tokens < 0 or self.systems < 1:
            raise ConfigError(
                f"shared_tokens {self.shared_tokens} must be >= 0 and systems {self.systems} must be >= 1."
            )


def synthetic_trace(
    seed: int,
    *,
    sessions: int,
    shape: TextShape | None = None,
    arrivals: Arrivals | None = None,
    name: str = "synthetic",
) -> Trace:
    """Sessions whose turns are complete prompts: the history with recorded answers, then the new text.

    Equal arguments give an equal trace in every process. Raises ConfigError for no sessions.
    """
    if sessions < 1:
        raise ConfigError(f"sessions {sessions} must be >= 1.")
    shape = shape or TextShape()
    rng, ids = random.Random(f"{name}/{seed}"), [0]
    count = shape.shared_tokens // BLOCK_TOKENS
    systems = [tuple(take_id(ids) for _ in range(count)) for _ in range(shape.systems)]
    times = arrivals.times(sessions, rng) if arrivals is not None else [None] * sessions
    made = tuple(
        TraceSession(
            f"{name}-{seed}-{number}", (_agent(rng, shape, Growth(ids, systems[number % len(systems)])),), time
        )
        for number, time in enumerate(times)
    )
    return Trace(f"{name}-{seed}", made, BLOCK_TOKENS)


def _agent(rng: random.Random, shape: TextShape, prompt: Growth) -> Agent:
    calls = []
    for turn in range(shape.turns.draw(rng)):
        blocks = prompt.grow(shape.input.draw(rng))
        output = shape.output.draw(rng)
        calls.append(Call(prompt.tokens, output, blocks, start=Seconds(0.0) if turn == 0 else None))
        prompt.grow(output)
    return Agent("root", tuple(calls), system_tokens=shape.shared_tokens // BLOCK_TOKENS * BLOCK_TOKENS)


def trace_of(workload: Workload) -> Trace:
    """A chat workload as a trace of texts whose turns follow live answers."""
    sessions = []
    for session in workload.sessions:
        system = () if session.system is None else ({"role": "system", "content": session.system},)
        calls = tuple(
            Call(
                None,
                turn.output_tokens,
                think_time=turn.think_time,
                continues=number > 0,
                messages=(*(system if number == 0 else ()), {"role": "user", "content": turn.text}),
            )
            for number, turn in enumerate(session.turns)
        )
        sessions.append(TraceSession(session.id, (Agent("root", calls),), session.arrival))
    return Trace(workload.name, tuple(sessions))
