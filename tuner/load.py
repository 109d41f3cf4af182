"""A closed loop of chat sessions: as many lanes as the workload says, each holding one conversation at a time.

The load knows messages and lengths, not tokens: a ``ChatClient`` renders and sends them, so that one load drives the
embedded engine and any other. Live answers become history, as a real client's would; the salt of a repeated session
keeps a second round from finding the first one's prompts in the cache.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from energyopt.core.errors import EnergyoptError, EngineError, OverloadedError, PromptTooLongError
from energyopt.core.records import RequestRecord
from energyopt.core.units import Seconds
from energyopt.core.workload import Session, Turn, Workload

_PAUSE = Seconds(0.05)
"""After a failed request a lane waits this long, so that a broken engine is not hammered."""
_ABORT_EVERY = Seconds(0.02)


class Message(TypedDict):
    """One entry of a conversation, in the form chat templates take."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request. ``error`` says why ``record`` is a failed one; None also for an abort."""

    text: str
    record: RequestRecord
    error: EnergyoptError | None = None


class ChatClient(Protocol):
    """Sends one turn and waits for its whole answer.

    ``ask`` generates exactly ``output_tokens`` tokens, greedily, whatever the model wants. A refused or failed request
    comes back as an Answer with ``error``; only EngineDeadError is raised, because nothing can follow it.
    """

    async def ask(
        self, messages: Sequence[Message], *, output_tokens: int, request_id: str, session: str
    ) -> Answer: ...

    def abort(self, request_id: str) -> None:
        """End a request early; its ``ask`` returns with an aborted record. An unknown id is ignored."""
        ...


class ClosedLoopLoad:
    """Runs ``workload.concurrency`` lanes over the sessions, again and again, until it is stopped.

    ``records`` has every request that ended, in that order, failed and aborted ones included. ``cut_sessions`` counts
    sessions that outgrew the context and ended early; ``errors`` counts failures by their class. Belongs to one event
    loop and runs once.
    """

    def __init__(self, client: ChatClient, workload: Workload) -> None:
        self.records: list[RequestRecord] = []
        self.cut_sessions = 0
        self.errors: Counter[str] = Counter()
        self._client = client
        self._lanes = workload.concurrency
        self._sessions = endless(workload)
        self._sent = 0
        self._in_flight: set[str] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until ``stop``. Raises EngineDeadError when the engine ends under the load."""
        lanes = [asyncio.create_task(self._lane()) for _ in range(self._lanes)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def stop(self, patience: Seconds = Seconds(10.0)) -> None:
        """Begin nothing new, abort what is in flight and wait for it. Raises EngineError after ``patience``."""
        self._stopping.set()
        for _ in range(max(1, round(patience / _ABORT_EVERY))):
            if not self._in_flight:
                return
            # Again in every round: an id may have been between the client and the engine in the last one.
            for request_id in tuple(self._in_flight):
                self._client.abort(request_id)
            await asyncio.sleep(_ABORT_EVERY)
        if self._in_flight:
            raise EngineError(f"{len(self._in_flight)} requests did not end within {patience:g} s of their abort.")

    async def _lane(self) -> None:
        while not self._stopping.is_set():
            await self._converse(next(self._sessions))

    async def _converse(self, session: Session) -> None:
        history: list[Message] = []
        if session.system is not None:
            history.append({"role": "system", "content": session.system})
        for number, turn in enumerate(session.turns):
            if await self._stopped_within(turn.think_time):
                return
            history.append({"role": "user", "content": turn.text})
            answer = await self._send(session, turn, history)
            if number > 0 and isinstance(answer.error, PromptTooLongError):
                self.cut_sessions += 1
                return
            self.records.append(answer.record)
            if answer.record.failed:
                await self._note_failure(answer)
                return
            history.append({"role": "assistant", "content": answer.text})

    async def _send(self, session: Session, turn: Turn, history: Sequence[Message]) -> Answer:
        self._sent += 1
        request_id = f"{session.id}/{self._sent}"
        self._in_flight.add(request_id)
        try:
            return await self._client.ask(
                history, output_tokens=turn.output_tokens, request_id=request_id, session=session.id
            )
        finally:
            self._in_flight.discard(request_id)

    async def _note_failure(self, answer: Answer) -> None:
        if answer.error is not None:
            self.errors[type(answer.error).__name__] += 1
        retry = answer.error.retry_after if isinstance(answer.error, OverloadedError) else _PAUSE
        await self._stopped_within(Seconds(max(retry, _PAUSE)))

    async def _stopped_within(self, duration: Seconds) -> bool:
        """Wait ``duration`` or until the stop, and say whether it came."""
        if duration > 0 and not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), duration)
            except TimeoutError:
                return False
        return self._stopping.is_set()


def endless(workload: Workload) -> Iterator[Session]:
    """The sessions in order, then again with a salt before the first user text, for ever.

    The system prompt keeps its text: a service shares it over all of its sessions.
    """
    yield from workload.sessions
    cycle = 1
    while True:
        for session in workload.sessions:
            first = session.turns[0]
            salted = first.model_copy(update={"text": f"({cycle}) {first.text}"})
            yield session.model_copy(update={"id": f"{session.id}~{cycle}", "turns": (salted, *session.turns[1:])})
        cycle += 1
