"""AgentX 1.0: recorded coding sessions, replayed as trees of agents by lanes that start in the middle.

Rules: a lane holds one tree until it has drained; each lane begins inside its first trace, at a time drawn between
``EARLIEST`` and ``LATEST`` of it; before the measurement the turns before that time are sent for one token each, so
that the cache is as full as it would be; recorded answers stand in the prompts and the live ones are thrown away;
answers have their recorded length; every session start has content of its own; waits are cut at 300 s and a system
without work is woken after 10 s. A window below 900 s is too short to say anything of offloading, and such a result is
not valid.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

from ..workload.trace import Trace, TraceSession
from .ask import Ask
from .loads import Deck
from .pacer import Pace
from .player import Player, Stage, Start
from .render import Conversation

EARLIEST, LATEST = 0.25, 0.75
SHORTEST = Seconds(900.0)
WARMUP_REQUESTS = 10
PACE = Pace(gap_cap=Seconds(300.0), idle_cap=Seconds(10.0))


def start_inside(start: Start, share: float) -> Start:
    """``start`` with everything before ``share`` of its recorded span as history; at least one call is left."""
    session = start.session
    times = [call.start for call in session.calls if call.start is not None]
    moment = share * max(times, default=0.0)
    skip = [sum(1 for c in agent.calls if c.start is not None and c.start < moment) for agent in session.agents]
    if all(done == len(agent.calls) for done, agent in zip(skip, session.agents, strict=True)):
        skip[0] = max(0, len(session.root.calls) - 1)
    return replace(start, skip=tuple(skip))


class AgentxLoop:
    """A closed loop by the rules. ``prime`` comes first, then ``run`` (a ``Load``)."""

    def __init__(self, trace: Trace, lanes: int, seed: int) -> None:
        check(trace)
        if lanes < 1:
            raise ConfigError(f"AgentX needs at least 1 lane, not {lanes}.")
        self._starts: Iterator[Start] = Deck(trace, bust=True, shuffle=seed).deal()
        rng = random.Random(f"agentx/{seed}")
        self._first = [start_inside(next(self._starts), rng.uniform(EARLIEST, LATEST)) for _ in range(lanes)]

    @property
    def first(self) -> list[Start]:
        """Where the lanes begin."""
        return list(self._first)

    async def prime(self, stage: Stage) -> None:
        """Fill the cache: the turns before each lane's beginning, for one token each. Failures are left to the run."""
        async with asyncio.TaskGroup() as group:
            for start in self._first:
                group.create_task(_prime(stage, start))

    async def run(self, stage: Stage) -> None:
        async with asyncio.TaskGroup() as group:
            for first in self._first:
                group.create_task(self._lane(stage, first))

    async def _lane(self, stage: Stage, start: Start) -> None:
        while not stage.dispatcher.stopping.is_set():
            await Player(stage, start).play()
            start = next(self._starts)


async def _prime(stage: Stage, start: Start) -> None:
    for place, agent in enumerate(start.session.agents):
        done = start.first(place)
        if done == len(agent.calls):
            continue
        for index in range(max(0, done - WARMUP_REQUESTS), done):
            call = agent.calls[index]
            talk = Conversation(start.id, start.salt)
            await stage.dispatcher.send(
                Ask(
                    id=stage.dispatcher.next_id(start.id),
                    session=start.id,
                    prompt=stage.rendering.prompt(talk, call, f"{place}.{index}"),
                    output_tokens=1,
                    due=Seconds(stage.pacer.now - stage.pacer.skipped),
                    expected_input=call.input_tokens,
                    expected_cached=stage.foresight.cached(call, start.salt),
                    warming=True,
                )
            )


def check(trace: Trace) -> None:
    """Raises ConfigError unless every call is a complete prompt with lengths, and reuse is known."""
    for session in trace.sessions:
        if not _complete(session):
            raise ConfigError(
                f"AgentX replays sessions of complete prompts with block ids; session {session.id!r} of {trace.name} "
                "has others. Use recorded agentic sessions (weka form) or --workload agentic."
            )


def _complete(session: TraceSession) -> bool:
    return all(call.input_tokens is not None and call.output_tokens and not call.continues for call in session.calls)


def faults(window: Seconds) -> tuple[str, ...]:
    """Why a run does not count as AgentX 1.0, beside what makes any run invalid."""
    if window >= SHORTEST - 1e-3:
        return ()
    return (f"short: the window is {window:.0f} s; AgentX 1.0 asks for at least {SHORTEST:.0f} s",)
