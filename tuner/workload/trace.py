"""What a recorded or generated workload says: sessions, their agents, the calls they made, and how prompts overlap.

A trace knows lengths and which blocks of a prompt are equal to which; most traces know no text. Reuse is in
``Call.blocks``: one id for each ``Trace.block_tokens`` tokens of the whole prompt, in prefix order. The ids are global:
within one trace equal ids mean equal tokens behind equal prefixes, across sessions too. A reader for a format whose ids
are local to a session makes them global.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from energyopt.core.units import Seconds

Message = Mapping[str, object]
"""One entry of a conversation as OpenAI's API has it: ``role``, ``content`` and whatever else was recorded."""

DERIVED_IDS = 1 << 48
"""Ids from here on were made by a reader; those of a file are below."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    ``input_tokens`` is the whole prompt with its history, None where only text is known; ``output_tokens`` None where
    the recorded answer was not counted. ``blocks`` covers the prompt's full blocks and, in some formats, the partial
    one at its end; () is unknown. ``start`` counts from the start of the session; ``think_time`` from the end of the
    agent's previous call; ``server_time`` and ``ttft`` are what the recorded service took.

    ``continues``: the new text (``messages``, ``added_blocks``) follows the earlier calls and their live answers;
    otherwise the prompt is complete as it stands. ``added_blocks`` are the ids as a row of a multi-turn Mooncake file
    gives them, for the added text alone. ``answer`` is the recorded answer's text.
    """

    input_tokens: int | None
    output_tokens: int | None
    blocks: tuple[int, ...] = ()
    start: Seconds | None = None
    think_time: Seconds | None = None
    server_time: Seconds | None = None
    ttft: Seconds | None = None
    continues: bool = False
    added_tokens: int | None = None
    added_blocks: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    answer: str | None = None
    model: str | None = None
    streamed: bool = False
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """One line of calls, each after the one before. The first agent of a session is its root.

    A sub-agent was started by ``parent`` (an index into the session's agents) when ``after`` of the parent's calls had
    been sent. ``start`` counts from the start of the session; ``duration`` and ``kind`` are as recorded.
    ``system_tokens`` and ``tool_tokens`` are the parts at the front of every prompt, where known.
    """

    id: str
    calls: tuple[Call, ...]
    parent: int | None = None
    after: int = 0
    start: Seconds | None = None
    duration: Seconds | None = None
    kind: str | None = None
    status: str | None = None
    system_tokens: int = 0
    tool_tokens: int = 0
    tool_uses: int = 0


@dataclass(frozen=True, slots=True)
class TraceSession:
    """A tree of agents: ``agents[0]`` is the root, a parent stands before its children.

    ``arrival`` counts from the start of the trace; None where the sessions have no common clock.
    """

    id: str
    agents: tuple[Agent, ...]
    arrival: Seconds | None = None

    @property
    def root(self) -> Agent:
        return self.agents[0]

    @property
    def calls(self) -> Iterator[Call]:
        """Every call of every agent, the root's first."""
        return (call for agent in self.agents for call in agent.calls)

    def children(self, parent: int) -> list[int]:
        """Indices of the agents that agent ``parent`` started, in order."""
        return [index for index, agent in enumerate(self.agents) if agent.parent == parent]

    def joined_at(self, child: int) -> int | None:
        """The first call of the parent that waited for agent ``child`` to end; None if no later call did.

        A call that was sent while the sub-agent still ran cannot have waited for it. Without times the next call waits.
        """
        agent = self.agents[child]
        if agent.parent is None:
            raise ValueError("the root has no parent that could wait for it.")
        calls = self.agents[agent.parent].calls
        end = None if agent.start is None else agent.start + (agent.duration or 0.0)
        for index in range(agent.after, len(calls)):
            sent = calls[index].start
            if end is None or sent is None or sent >= end:
                return index
        return None


@dataclass(frozen=True, slots=True)
class Timed:
    """A call with its place: when it was sent (None if unknown), session index, agent index, call index."""

    time: Seconds | None
    session: int
    agent: int
    index: int
    call: Call


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload as recorded. ``block_tokens`` is None where nothing is known about reuse.

    ``skipped`` has one sentence for each row that was left out on request.
    """

    name: str
    sessions: tuple[TraceSession, ...]
    block_tokens: int | None = None
    skipped: tuple[str, ...] = field(default=())

    @property
    def calls(self) -> Iterator[Call]:
        return (call for session in self.sessions for call in session.calls)

    def timeline(self) -> list[Timed]:
        """Every call in the order in which it was sent.

        A session without an arrival follows the one before it as a whole (its own calls in their order).
        """
        order: list[tuple[tuple[float, ...], Timed]] = []
        base = 0.0
        for number, session in enumerate(self.sessions):
            base = base if session.arrival is None else session.arrival
            group = 0 if session.arrival is not None else number
            for place, agent in enumerate(session.agents):
                last = base + (agent.start or 0.0)
                for index, call in enumerate(agent.calls):
                    last = max(last, base + call.start) if call.start is not None else last
                    known = session.arrival is not None and call.start is not None
                    time = Seconds(base + (call.start or 0.0)) if known else None
                    order.append(((group, last, number, place, index), Timed(time, number, place, index, call)))
        return [timed for _, timed in sorted(order, key=lambda entry: entry[0])]
