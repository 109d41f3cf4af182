"""Starts the ranks, one process each, and watches them: one death ends all, and is known at once by name and cause."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.errors import EnergyoptError, EngineError

from .memory import SharedMemory
from .wire import Kind, receive, send, unpack_error

PROGRAM = "from engine.parallel.rank import main; main(inherited)"
_GUARDED = "from engine.parallel.guard import begin; inherited = begin(); "
_LOOK = 0.25
"""Seconds between two looks at whether the ranks still beat, while one is waited for."""
_LAST_WORDS = 1.0
"""Seconds within which a rank that died has said why; the words are in its socket already."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: for ``silence`` of a rank that should beat several times a second, for its ``start`` (a process that
    loads large libraries may be silent for long), and for an orderly ``end``."""

    silence: float = 30.0
    start: float = 180.0
    end: float = 5.0


class Launcher:
    """The ranks' processes; ``names`` say who they are, ``program`` what each runs with what it ``inherited``.

    A rank that ends before ``close`` takes the others with it. The constructor returns when all are started; raises
    EngineError if one cannot be. Frames are read from one thread and sent from any.
    """

    def __init__(
        self,
        names: Sequence[str],
        memory: SharedMemory,
        *,
        program: str = PROGRAM,
        patience: Patience | None = None,
    ) -> None:
        self.names = tuple(names)
        self._memory = memory
        self._patience = patience or Patience()
        self._program = _GUARDED + program
        self._children: list[subprocess.Popen[bytes]] = []
        self.channels: list[socket.socket] = []
        self._failure: EnergyoptError | None = None
        self._closing = False
        self._started = False
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._news, self._tell = socket.socketpair()
        started = threading.Event()
        self._watcher = threading.Thread(target=self._live, args=(started,), name="ranks", daemon=True)
        self._watcher.start()
        started.wait()
        if failure := self.failure:
            self.close()
            raise failure

    @property
    def failure(self) -> EnergyoptError | None:
        """Why the ranks ended, if not because they were closed."""
        return self._failure

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(child.pid for child in self._children)

    def started(self) -> None:
        """All ranks have answered: from now on their silence is judged strictly."""
        self._started = True

    def send(self, kind: Kind, body: bytes = b"", ranks: Sequence[int] | None = None) -> None:
        """To all ranks, or to some. Raises the failure's error if a rank is gone or takes nothing any more."""
        for rank in range(len(self.channels)) if ranks is None else ranks:
            try:
                with self._sending:
                    send(self.channels[rank], kind, body)
            except EngineError as error:
                raise self._lost(rank, error) from error

    def receive(self, rank: int) -> tuple[Kind, bytes]:
        """The next frame of a rank, however long its work takes while it shows that it lives.

        Raises the failure's error when any rank dies or falls silent, or the one that this rank reports.
        """
        channel = self.channels[rank]
        if self._closing:
            raise self._failure or EngineError("The ranks of this engine are closed.")
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            selector.register(self._news, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(_LOOK)}
                if self._failure is not None:
                    raise self._failure
                if channel in ready:
                    return self._frame(rank)
                self._check_beats()

    def close(self) -> None:
        """End all ranks: they are asked, then killed. Idempotent."""
        self._closing = True
        for channel in self.channels:
            with contextlib.suppress(EngineError):
                send(channel, Kind.CLOSE)
        self._wake()
        self._watcher.join()
        for end in (*self.channels, self._news, self._tell):
            end.close()

    def _frame(self, rank: int) -> tuple[Kind, bytes]:
        try:
            with self._reading:
                kind, body = receive(self.channels[rank])
        except EngineError as error:
            raise self._lost(rank, error) from error
        if kind is Kind.ERROR:
            raise self._fail(unpack_error(body, self.names[rank]))
        return kind, body

    def _lost(self, rank: int, error: EngineError) -> EnergyoptError:
        """A closed socket and a dead process are seen by different threads: wait for the one that knows the cause."""
        end = time.monotonic() + _LAST_WORDS
        while self._failure is None and time.monotonic() < end:
            time.sleep(0.01)
        return self._fail(EngineError(f"{self.names[rank]}: {error.message}"))

    def _check_beats(self) -> None:
        limit = self._patience.silence if self._started else self._patience.start
        now = time.monotonic()
        for rank, name in enumerate(self.names):
            if now - self._memory.last_beat(rank) > limit:
                raise self._fail(EngineError(f"{name} has shown no sign of life for {limit:g} s, so it was ended."))

    def _fail(self, error: EnergyoptError) -> EnergyoptError:
        """Keep the first failure and end everybody."""
        if self._failure is None:
            self._failure = error
        self._memory.end()
        self._wake()
        return self._failure

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._tell.send(b"x", socket.MSG_DONTWAIT)

    def _live(self, started: threading.Event) -> None:
        """The watcher's life: start all, wait for the first end of any, end all, reap all."""
        try:
            for rank in range(len(self.names)):
                self._start(rank)
        except OSError as error:
            self._failure = EngineError(f"A rank could not be started: {error}.")
        finally:
            started.set()
        if self._failure is None:
            self._watch()
        self._end_all()

    def _start(self, rank: int) -> None:
        self._memory.beat(rank)
        ours, theirs = socket.socketpair()
        ours.settimeout(self._patience.silence)
        self.channels.append(ours)
        with theirs:
            fds = (theirs.fileno(), self._memory.fd)
            given = map(str, (os.getpid(), rank, *fds, self._memory.size))
            command = [sys.executable, "-P", "-c", self._program, *given]
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=fds)
        self._children.append(child)

    def _watch(self) -> None:
        """Until a process ends, or somebody wakes us because all are to end."""
        with selectors.DefaultSelector() as selector:
            for rank, child in enumerate(self._children):
                selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ, rank)
            woken = self._news.dup()
            selector.register(woken, selectors.EVENT_READ)
            try:
                while not self._closing and self._failure is None:
                    ended = [key.data for key, _ in selector.select() if key.data is not None]
                    if ended and not self._closing:
                        self._fail(self._cause(ended[0]))
            finally:
                for key in tuple(selector.get_map().values()):
                    if key.data is not None:
                        os.close(key.fd)
                woken.close()

    def _cause(self, rank: int) -> EnergyoptError:
        """What a dead rank said last or, if it said nothing, how it died."""
        channel, name = self.channels[rank], self.names[rank]
        with contextlib.suppress(EngineError), self._reading:
            channel.settimeout(_LAST_WORDS)
            while True:
                kind, body = receive(channel)
                if kind is Kind.ERROR:
                    return unpack_error(body, name)
        code = self._children[rank].wait()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return EngineError(f"{name} {how}; the engine ends with it.")

    def _end_all(self) -> None:
        """Give an orderly end its time; a failure gives none. Processes are killed, stopped ones too, and reaped."""
        if self._failure is None:
            end = time.monotonic() + self._patience.end
            while time.monotonic() < end and any(child.poll() is None for child in self._children):
                time.sleep(0.005)
        self._memory.end()
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
        for child in self._children:
            child.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
