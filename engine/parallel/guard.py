"""A rank's first acts, before it imports anything slow: it will not outlive the engine, and shows that it lives.

Nothing heavy is imported here. The kernel kills a rank when the *thread* that started it ends, so a launcher starts
ranks from a thread that lives as long as they do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

from .memory import SharedMemory

BEAT = 0.25
"""Seconds between two signs of life."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a rank was given: its number, its end of a socket, and the memory it shares with the others."""

    rank: int
    socket_fd: int
    memory: SharedMemory


def begin(arguments: list[str] | None = None) -> Inherited:
    """Reads the process's arguments: our parent's id, our rank, the socket, the memory and its size.

    From here on SIGKILL comes when the parent is gone; this process ends at once if it is gone already. Ctrl-C in a
    terminal reaches every process of its group: the engine decides what it means, a rank ignores it.
    """
    parent, rank, socket_fd, memory_fd, size = map(int, sys.argv[1:6] if arguments is None else arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)
    memory = SharedMemory(memory_fd, size)
    threading.Thread(target=_beat, args=(memory, rank), name="beat", daemon=True).start()
    return Inherited(rank, socket_fd, memory)


def _beat(memory: SharedMemory, rank: int) -> None:
    """Until the process ends. A process that is stopped, or whose machine swaps it away, falls silent."""
    while True:
        memory.beat(rank)
        time.sleep(BEAT)
