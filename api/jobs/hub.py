"""Events of studies from the database to everybody who watches, with one look at the database for all of them.

A watcher first replays from the database what it has missed, then takes what the hub finds. The hub holds no event
that is not on its way to a watcher, so its memory does not grow with what has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from energyopt.core.errors import OverloadedError, StoreError
from energyopt.core.study import Event
from energyopt.store.event_tail import EventTail, Standing

A = TypeVar("A")
B = TypeVar("B")

_log = logging.getLogger(__name__)
POLL = 0.25
HEARTBEAT = 15.0
QUEUE = 256
"""Frames that wait for one watcher; a slower one is sent to the database for the rest."""


@dataclass(eq=False)
class _Watcher:
    """``queue`` holds ids and frames; ``lagging`` says that some did not fit."""

    queue: asyncio.Queue[tuple[int | None, bytes]] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    lagging: bool = False

    def give(self, event_id: int | None, frame: bytes) -> None:
        try:
            self.queue.put_nowait((event_id, frame))
        except asyncio.QueueFull:
            self.lagging = True


@dataclass(eq=False)
class _Study:
    """What the hub knows of one watched study: the last event handed out (None: not looked up) and how it stood."""

    mark: int | None = None
    standing: Standing | None = None
    watchers: set[_Watcher] = field(default_factory=set)


class EventHub:
    """``watch`` gives the frames of one study's stream. All of it lives on one event loop."""

    def __init__(self, tail: EventTail, *, max_watchers: int, poll: float = POLL, heartbeat: float = HEARTBEAT) -> None:
        self._tail, self._max, self._poll, self._heartbeat = tail, max_watchers, poll, heartbeat
        self._studies: dict[str, _Study] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def watchers(self) -> int:
        return sum(len(study.watchers) for study in self._studies.values())

    @property
    def closed(self) -> bool:
        return self._closed

    def admit(self, others: int = 0) -> None:
        """Raises OverloadedError when as many watch as may, with ``others`` who watch something else."""
        if self._closed or self.watchers + others >= self._max:
            raise OverloadedError(f"{self._max} watchers is all that this process serves.", retry_after=5.0)

    def close(self) -> None:
        """End every stream, from any thread; clients come back with the last id they saw."""
        self._closed = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it the streams
                self._loop.call_soon_threadsafe(self._end_all)

    async def watch(self, study_id: str, after: int) -> AsyncGenerator[bytes]:
        """Frames of the study's events after the id ``after``, each once and in order, until the study has ended."""
        watcher, last, ended = _Watcher(), after, False
        self._join(study_id, watcher)
        try:
            yield b"retry: 2000\n\n"
            await self._mark(study_id)  # before the replay, which then covers everything up to the mark
            while not ended and not self._closed:
                watcher.lagging = False
                async for event in self._missed(study_id, last):
                    last = event.id
                    yield frame_of(event)
                while not watcher.lagging or not watcher.queue.empty():
                    event_id, frame = await self._next(watcher)
                    if event_id is not None and event_id <= last:
                        continue
                    last = last if event_id is None else event_id
                    yield frame
                    if self._closed or frame == END:
                        ended = True
                        break
        finally:
            self._leave(study_id, watcher)

    async def _missed(self, study_id: str, after: int) -> AsyncGenerator[Event]:
        """What the database has after ``after``, and how the study stands."""
        while True:
            found, _ = await self._ask(self._tail.after, {study_id: after})
            events = found.get(study_id, [])
            for event in events:
                yield event
            if not events:
                return
            after = events[-1].id

    async def _next(self, watcher: _Watcher) -> tuple[int | None, bytes]:
        try:
            async with asyncio.timeout(self._heartbeat):
                return await watcher.queue.get()
        except TimeoutError:
            return None, b": still here\n\n"

    def _join(self, study_id: str, watcher: _Watcher) -> None:
        study = self._studies.setdefault(study_id, _Study())
        study.watchers.add(watcher)
        if study.standing is not None:
            watcher.give(None, _standing_frame(study.standing))
        if self._task is None or self._task.done():
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._follow())

    async def _mark(self, study_id: str) -> None:
        study = self._studies[study_id]
        if study.mark is None:
            last = await self._ask(self._tail.last, study_id)
            study.mark = last if study.mark is None else study.mark

    def _leave(self, study_id: str, watcher: _Watcher) -> None:
        study = self._studies.get(study_id)
        if study is not None:
            study.watchers.discard(watcher)
            if not study.watchers:
                del self._studies[study_id]

    async def _ask(self, look: Callable[[A], B], what: A) -> B:
        """A look at the database on a thread; one that is away is asked again until it is back."""
        while True:
            try:
                return await run_in_threadpool(look, what)
            except StoreError as error:
                _log.warning("events cannot be read: %s", error)
                await asyncio.sleep(4 * self._poll)

    async def _follow(self) -> None:
        """Look for news while anybody watches."""
        while self._studies and not self._closed:
            marks = {key: study.mark for key, study in self._studies.items() if study.mark is not None}
            found, standings = await self._ask(self._tail.after, marks)
            for study_id, study in list(self._studies.items()):
                if study_id in marks:
                    self._hand_out(study, found.get(study_id, []), standings.get(study_id))
            await asyncio.sleep(self._poll)

    def _hand_out(self, study: _Study, events: list[Event], standing: Standing | None) -> None:
        for event in events:
            if study.mark is None or event.id > study.mark:
                study.mark = event.id
                frame = frame_of(event)
                for watcher in study.watchers:
                    watcher.give(event.id, frame)
        if standing is not None and standing != study.standing:
            for watcher in study.watchers:
                watcher.give(None, _standing_frame(standing))
        # The standing was read before the events: with none after it there will be none any more.
        over = standing is None or (standing.state.terminal and not events and standing == study.standing)
        study.standing = standing
        if over:
            for watcher in study.watchers:
                watcher.give(None, END)

    def _end_all(self) -> None:
        for study in self._studies.values():
            for watcher in study.watchers:
                watcher.give(None, b": the service ends\n\n")


END = b"event: end\ndata: {}\n\n"
"""After it nothing comes; a client must not connect again."""


def frame_of(event: Event) -> bytes:
    """One event as its bytes on the wire; its id is what ``Last-Event-ID`` names."""
    data = to_json({"at": event.at, "kind": event.kind, "data": event.data}, inf_nan_mode="strings")
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, _word(event.kind), data)


def _standing_frame(standing: Standing) -> bytes:
    """Without an id: it says how things are, and is not repeated to who was away."""
    progress = (standing.progress or "null").encode()
    return b'event: standing\ndata: {"state": "%s", "progress": %s}\n\n' % (standing.state.value.encode(), progress)


def _word(kind: str) -> bytes:
    return "".join(letter for letter in kind if letter.isalnum() or letter in "_-").encode() or b"message"
