"""Plays one session: its root and sub-agents, each call after what it waited for when it was recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from energyopt.core.errors import OverloadedError, PromptTooLongError
from energyopt.core.units import Seconds

from ..workload.trace import Call, TraceSession
from .ask import Ask, Prompt, Reply
from .dispatch import Dispatcher
from .foresight import Foresight
from .pacer import Pace, Pacer
from .render import Conversation

_PAUSE = Seconds(0.05)
"""After a failed request a session waits this long before it ends, so that a broken engine is not hammered."""


class Rendering(Protocol):
    """Makes prompts; see ``render``."""

    def prompt(self, talk: Conversation, call: Call, place: str) -> Prompt: ...

    def heard(self, talk: Conversation, call: Call, reply: Reply) -> None: ...


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a session. ``salt`` makes its content its own, up to its system prompt or with it (``apart``);
    ``skip`` calls of each agent are history already.
    """

    id: str
    session: TraceSession
    salt: str = ""
    skip: tuple[int, ...] = ()
    apart: bool = True

    def first(self, place: int) -> int:
        return self.skip[place] if place < len(self.skip) else 0


class Abandonment(Protocol):
    """Decides after how long the user of a request leaves; None: stays to the end."""

    def draw(self) -> Seconds | None: ...


@dataclass(slots=True)
class Stage:
    """What players share. ``patience`` is that of users for their first token."""

    dispatcher: Dispatcher
    rendering: Rendering
    pacer: Pacer
    pace: Pace
    foresight: Foresight
    patience: Seconds | None = None
    abandonment: Abandonment | None = None
    failed_sessions: int = field(default=0)


class Player:
    """Plays one start of a session until its tree has drained, it fails, or the replay stops."""

    def __init__(self, stage: Stage, start: Start) -> None:
        self._stage, self._start = stage, start
        self._ended: dict[int, float] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    async def play(self) -> None:
        """Raises what the client raises (EngineDeadError); nothing is left running then."""
        try:
            await self._agent(0, self._stage.pacer.now)
            await asyncio.gather(*self._running.values())
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _agent(self, place: int, begun: float) -> None:
        agent, stage = self._start.session.agents[place], self._stage
        talk = Conversation(self._start.id, self._start.salt, apart=self._start.apart)
        last = begun
        for index in range(self._start.first(place), len(agent.calls)):
            self._spawn(place, index, last)
            last = await self._joined(place, index, last)
            due = self._due(place, index, begun, last)
            await self._wait(due)
            if stage.dispatcher.stopping.is_set():
                return
            reply = await self._call(talk, place, index, due)
            last = stage.pacer.now
            if reply.stopped:
                return
            if reply.record.failed and not reply.left:
                await self._give_up(reply, grown=index > 0)
                return
            self._stage.rendering.heard(talk, agent.calls[index], reply)
        self._spawn(place, len(agent.calls), last)

    def _due(self, place: int, index: int, begun: float, last: float) -> float:
        """When a call should leave: the recorded gap after what it waited for. Only the very first one's thinking comes
        before it; that of a session which begins inside is history.

        A recording of starts alone does not say how long answers took; then the start counts, or the end of the answer
        before if that is later.
        """
        first, pace = self._start.first(place), self._stage.pace
        calls = self._start.session.agents[place].calls
        if index == first:
            return last + pace.of(calls[0].think_time or 0.0) if index == 0 else last
        call, origin = calls[index], calls[first].start
        if call.think_time is None and call.start is not None and origin is not None and call.server_time is None:
            return max(last, begun + pace.of(call.start - origin))
        return last + pace.of(recorded_gap(self._start.session, place, index))

    async def _call(self, talk: Conversation, place: int, index: int, due: float) -> Reply:
        stage, call = self._stage, self._start.session.agents[place].calls[index]
        prompt = stage.rendering.prompt(talk, call, f"{place}.{index}")
        return await stage.dispatcher.send(
            Ask(
                id=stage.dispatcher.next_id(self._start.id),
                session=self._start.id,
                prompt=prompt,
                output_tokens=max(1, call.output_tokens or 1),
                due=Seconds(due - stage.pacer.skipped),
                expected_input=call.input_tokens,
                expected_cached=stage.foresight.cached(call, self._start.salt),
                give_up=None if stage.abandonment is None else stage.abandonment.draw(),
                patience=stage.patience,
                grown=index > 0,
            )
        )

    async def _wait(self, due: float) -> None:
        """Until ``due`` or the stop."""
        stopping = asyncio.ensure_future(self._stage.dispatcher.stopping.wait())
        waiting = asyncio.ensure_future(self._stage.pacer.wait_until(due))
        try:
            await asyncio.wait((stopping, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            waiting.cancel()
            await asyncio.gather(stopping, waiting, return_exceptions=True)

    def _spawn(self, place: int, index: int, now: float) -> None:
        """Start the sub-agents that stood before call ``index``, or run already where the session begins inside."""
        session, begins = self._start.session, index == self._start.first(place)
        for child in session.children(place):
            after = session.agents[child].after
            if (after == index or (begins and after < index)) and child not in self._running:
                self._running[child] = asyncio.create_task(self._child(child, now))

    async def _child(self, place: int, begun: float) -> None:
        await self._agent(place, begun)
        self._ended[place] = self._stage.pacer.now

    async def _joined(self, place: int, index: int, last: float) -> float:
        """Wait for the sub-agents that call ``index`` waited for; returns when the last of them, or we, ended."""
        session = self._start.session
        for child in session.children(place):
            if child in self._running and session.joined_at(child) == index:
                await asyncio.shield(self._running[child])
                last = max(last, self._ended[child])
        return last

    async def _give_up(self, reply: Reply, *, grown: bool) -> None:
        """The end of an agent whose request failed. One that outgrew the context is cut, which is no failure."""
        if grown and isinstance(reply.error, PromptTooLongError):
            return
        self._stage.failed_sessions += 1
        retry = reply.error.retry_after if isinstance(reply.error, OverloadedError) else _PAUSE
        await self._wait(self._stage.pacer.now + max(retry, _PAUSE))


def recorded_gap(session: TraceSession, place: int, index: int) -> float:
    """Seconds from the end of what a call waited for (its agent's previous call, joined sub-agents) to its start."""
    calls = session.agents[place].calls
    call, before = calls[index], calls[index - 1]
    joined = [child for child in session.children(place) if session.joined_at(child) == index]
    ends = [(session.agents[child].start or 0.0) + (session.agents[child].duration or 0.0) for child in joined]
    if call.start is not None and ends:
        return max(0.0, call.start - max(ends))
    if call.think_time is not None:
        return call.think_time
    if call.start is None or before.start is None:
        return 0.0
    return max(0.0, call.start - before.start - (before.server_time or 0.0))
