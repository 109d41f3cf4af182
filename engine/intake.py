"""The door between callers' threads and the engine's thread: submissions and aborts, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from energyopt.core.errors import EnergyoptError, EngineDeadError, OverloadedError, RequestError
from energyopt.core.units import Seconds

from .stream import Stream


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to do between two steps, on the engine's thread; ``done`` receives its result."""

    work: Callable[[], int]
    done: Future[int] = field(default_factory=Future)

    def run(self) -> None:
        """Do it, unless whoever asked has given up."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self.work())
        except EnergyoptError as error:
            self.done.set_exception(error)

    def refuse(self, error: EnergyoptError) -> None:
        """It will not be done."""
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


@dataclass(slots=True)
class Mail:
    """What arrived since the engine's thread last looked."""

    submitted: list[Stream] = field(default_factory=list)
    aborted: list[Stream] = field(default_factory=list)
    errands: list[Errand] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.submitted or self.aborted or self.errands)


class Intake:
    """Admission under one lock: ids in use, the bound on waiting requests, and whether the engine still lives.

    ``retry_after`` estimates the wait for a place. A request that will find a free seat at the next step does not
    count as waiting.
    """

    def __init__(self, max_queued: int, max_running: int, retry_after: Callable[[], Seconds]) -> None:
        self._max_queued = max_queued
        self._max_running = max_running
        self._retry_after = retry_after
        self._changed = threading.Condition()
        self._mail = Mail()
        self._streams: dict[str, Stream] = {}
        self._running = self._waiting = self._unplaced = 0
        self._closing = False
        self._death: EngineDeadError | None = None

    @property
    def open(self) -> bool:
        """False once the engine was closed or died."""
        return not self._closing and self._death is None

    @property
    def num_new(self) -> int:
        """Requests submitted but not yet taken by the engine's thread."""
        return len(self._mail.submitted)

    def submit(self, stream: Stream) -> None:
        """Raises EngineDeadError, RequestError (id in use) or OverloadedError; then nothing was admitted."""
        with self._changed:
            self._check_open()
            if stream.request.id in self._streams:
                raise RequestError(f"The request id {stream.request.id!r} is in use: each needs its own.")
            free_seats = 0 if self._waiting else self._max_running - self._running
            if self._waiting + max(0, self._unplaced - free_seats) >= self._max_queued:
                raise OverloadedError(
                    f"The queue is full: {self._max_queued} requests wait already (max_num_queued_reqs).",
                    retry_after=self._retry_after(),
                )
            self._streams[stream.request.id] = stream
            self._mail.submitted.append(stream)
            self._unplaced += 1
            self._changed.notify()

    def ask(self, work: Callable[[], int]) -> Future[int]:
        """Have something done between two steps. Raises EngineDeadError; the future has it if the engine dies."""
        with self._changed:
            self._check_open()
            errand = Errand(work)
            self._mail.errands.append(errand)
            self._changed.notify()
            return errand.done

    def abort(self, stream: Stream) -> None:
        """Ask for the end of this very stream; no effect if it has ended."""
        with self._changed:
            if self._streams.get(stream.request.id) is stream:
                self._mail.aborted.append(stream)
                self._changed.notify()

    def abort_id(self, request_id: str) -> None:
        """Ask for the end of whichever stream has this id now; no effect if none has."""
        with self._changed:
            stream = self._streams.get(request_id)
        if stream is not None:
            self.abort(stream)

    def close(self) -> None:
        """Admit nothing more and wake the engine's thread, which sees ``open`` turned False."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def collect(self, *, block: bool, patience: Seconds | None = None) -> Mail:
        """The mail; with ``block`` it waits for some, or for the end, at most ``patience``. Engine's thread only."""
        with self._changed:
            if block:
                self._changed.wait_for(lambda: bool(self._mail) or self._closing, patience)
            mail, self._mail = self._mail, Mail()
            return mail

    def placed(self, *, running: int, waiting: int) -> None:
        """After scheduling: everybody collected so far runs or waits. Engine's thread only."""
        with self._changed:
            self._running, self._waiting = running, waiting
            self._unplaced = len(self._mail.submitted)

    def release(self, stream: Stream) -> None:
        """The request has ended; its id may be used again. Engine's thread only."""
        with self._changed:
            self._streams.pop(stream.request.id, None)

    def die(self, death: EngineDeadError) -> list[Stream]:
        """Admit nothing from now on; returns every live stream, collected or not. The first death stays."""
        with self._changed:
            self._death = self._death or death
            streams = list(self._streams.values())
            self._streams.clear()
            lost, self._mail = self._mail, Mail()
        for errand in lost.errands:
            errand.refuse(EngineDeadError(str(death)))
        return streams

    def _check_open(self) -> None:
        """Raise EngineDeadError unless the engine lives. Call it with the lock held."""
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death.__cause__
        if self._closing:
            raise EngineDeadError("The engine is closing and takes no more requests.")
