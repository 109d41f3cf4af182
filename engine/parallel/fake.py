"""Ranks as threads of this process, for tests: the same work over the same wires, without the seconds of a start."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from energyopt.core.errors import EngineError

from .memory import SharedMemory
from .rank import serve
from .wire import Kind, pack_error, receive, send, unpack_error


class ThreadCrew:
    """Satisfies ``runner.Crew``. A rank that fails tells why; the others are told that it is gone."""

    def __init__(self, names: Sequence[str], memory: SharedMemory) -> None:
        self._names = tuple(names)
        self._memory = memory
        self._channels: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._sending = threading.Lock()
        for name in names:
            ours, theirs = socket.socketpair()
            ours.settimeout(300)
            self._channels.append(ours)
            self._threads.append(threading.Thread(target=self._live, args=(theirs,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def started(self) -> None:
        """Threads fall silent together with whoever would ask."""

    def send(self, kind: Kind, body: bytes = b"", ranks: Sequence[int] | None = None) -> None:
        for rank in range(len(self._channels)) if ranks is None else ranks:
            with self._sending:
                send(self._channels[rank], kind, body)

    def receive(self, rank: int) -> tuple[Kind, bytes]:
        kind, body = receive(self._channels[rank])
        if kind is Kind.ERROR:
            raise unpack_error(body, self._names[rank])
        return kind, body

    def close(self) -> None:
        for channel in self._channels:
            with contextlib.suppress(EngineError):
                send(channel, Kind.CLOSE)
        for thread in self._threads:
            thread.join()
        for channel in self._channels:
            channel.close()

    def _live(self, channel: socket.socket) -> None:
        with channel:
            try:
                serve(channel, self._memory)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the border of the rank, as in a process
                self._memory.end()
                with contextlib.suppress(EngineError):
                    send(channel, Kind.ERROR, pack_error(error))
