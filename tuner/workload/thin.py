"""Smaller traces that behave alike: fewer blocks, never smaller ones, so that reuse and block alignment stay.

Of every ``keep_one_in`` distinct block ids one is kept, wherever it occurs. Ids stand for a block behind its prefix, so
the part of a prompt that was seen before shrinks exactly as its ids do, and the hit rate stays what it was up to the
luck of the draw (even, because ids are numbered in order).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

from .trace import Agent, Call, Trace, TraceSession


@dataclass(frozen=True, slots=True)
class Thinning:
    """One in ``keep_one_in`` blocks; outputs and times divided; the first ``sessions`` sessions (None: all).

    Raises ConfigError for divisors below 1.
    """

    keep_one_in: int = 1
    output_divisor: float = 1.0
    time_divisor: float = 1.0
    sessions: int | None = None

    def __post_init__(self) -> None:
        if self.keep_one_in < 1 or self.output_divisor < 1 or self.time_divisor < 1 or (self.sessions or 1) < 1:
            raise ConfigError(
                f"Thinning divides by numbers of at least 1; got blocks {self.keep_one_in}, outputs "
                f"{self.output_divisor:g}, times {self.time_divisor:g}, sessions {self.sessions}."
            )


def thin(trace: Trace, by: Thinning) -> Trace:
    """The thinned trace. Turns of a growing session become complete prompts, because their deltas no longer fit.

    Raises ConfigError if blocks are to be dropped and a call has none.
    """
    sessions = tuple(_session(session, trace.block_tokens, by) for session in trace.sessions[: by.sessions])
    return replace(trace, sessions=sessions)


def _session(session: TraceSession, block: int | None, by: Thinning) -> TraceSession:
    agents = tuple(_agent(agent, block, by) for agent in session.agents)
    return replace(session, agents=agents, arrival=_shorter(session.arrival, by))


def _agent(agent: Agent, block: int | None, by: Thinning) -> Agent:
    calls = tuple(_call(call, block, by) for call in agent.calls)
    kept = 1 / by.keep_one_in
    return replace(
        agent,
        calls=calls,
        start=_shorter(agent.start, by),
        duration=_shorter(agent.duration, by),
        system_tokens=int(agent.system_tokens * kept),
        tool_tokens=int(agent.tool_tokens * kept),
    )


def _call(call: Call, block: int | None, by: Thinning) -> Call:
    output = None if call.output_tokens is None else max(1, round(call.output_tokens / by.output_divisor))
    call = replace(
        call,
        output_tokens=output,
        start=_shorter(call.start, by),
        think_time=_shorter(call.think_time, by),
        server_time=_shorter(call.server_time, by),
        ttft=_shorter(call.ttft, by),
    )
    if by.keep_one_in == 1:
        return call
    if block is None or call.input_tokens is None or (not call.blocks and call.input_tokens >= block):
        raise ConfigError("Only traces with block ids can drop blocks; this one says nothing about reuse.")
    blocks = tuple(name for name in call.blocks if name % by.keep_one_in == 0)
    partial = len(call.blocks) * block - call.input_tokens if len(call.blocks) * block > call.input_tokens else 0
    ends_kept = bool(blocks) and blocks[-1] == call.blocks[-1]
    tokens = max(1, len(blocks) * block - (partial if ends_kept else 0))
    return replace(call, input_tokens=tokens, blocks=blocks, continues=False, added_tokens=None, added_blocks=())


def _shorter(value: Seconds | None, by: Thinning) -> Seconds | None:
    return None if value is None else Seconds(round(value / by.time_divisor, 6))
