"""POSIX semaphores in shared memory: how one rank tells another that its bytes are there.

Posting and waiting synchronise memory (POSIX.1-2024, XBD 4.15.2), so what was written before a post is seen after the
wait for it on every processor, whatever order that keeps its stores in; flags polled from Python would not promise it.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable

from energyopt.core.errors import EngineError

STRIDE = 64
"""Bytes for one semaphore: a cache line. glibc's and musl's own take 32."""

_SLICE = 0.05
"""Seconds of one sleep; between two it is checked whether waiting still makes sense."""

_TRIES = 16
"""Attempts before the first sleep, some microseconds. A thousand made an exchange between two ranks ten times slower on
two cores that had other work: the peer waits for the core that spins. As many as lately would have spared the sleep
were no better there: twice as slow as a few, and a tenth quicker on idle cores."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphores:
    """``count`` semaphores in ``memory``. One process makes them with ``initialize``, before any other attaches.

    ``check`` is called between two sleeps and raises if nobody will come any more. Raises EngineError where the C
    library cannot wait by the monotonic clock.
    """

    def __init__(self, memory: memoryview, count: int, check: Callable[[], None]) -> None:
        self._keep = (ctypes.c_char * (count * STRIDE)).from_buffer(memory)
        base = ctypes.addressof(self._keep)
        self._addresses = [ctypes.c_void_p(base + STRIDE * index) for index in range(count)]
        self._check = check
        library, brief = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)
        try:  # what never waits keeps the interpreter's lock: letting go of it costs as much as the call
            self._post, self._try, self._wait = brief.sem_post, brief.sem_trywait, library.sem_clockwait
        except AttributeError as error:
            raise EngineError("Ranks that share memory need sem_clockwait (glibc 2.30); gloo does without.") from error
        self._init = library.sem_init
        self._init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        for function in (self._post, self._try):
            function.argtypes = (ctypes.c_void_p,)
        self._wait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec))

    def initialize(self, value: int = 0) -> None:
        """Every semaphore starts at ``value``."""
        for address in self._addresses:
            self._must(self._init(address, 1, value), "sem_init")

    def post(self, index: int) -> None:
        if self._post(self._addresses[index]):
            self._must(-1, "sem_post")

    def wait(self, index: int, patience: float | None) -> bool:
        """True once it was posted, False after ``patience`` seconds (None: no bound). Raises what ``check`` raises."""
        address, attempt = self._addresses[index], self._try
        for _ in range(_TRIES):
            if not attempt(address):
                return True
        end = None if patience is None else time.monotonic() + patience
        while self._sleep(address):
            self._check()
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def _sleep(self, address: ctypes.c_void_p) -> bool:
        """Whether it is still to be waited for, after one slice or a signal."""
        until = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(_SLICE * 1e9)
        limit = _Timespec(until // 10**9, until % 10**9)
        if not self._wait(address, time.CLOCK_MONOTONIC, ctypes.byref(limit)):
            return False
        if ctypes.get_errno() in (errno.ETIMEDOUT, errno.EINTR):
            return True
        self._must(-1, "sem_clockwait")
        return True

    @staticmethod
    def _must(status: int, name: str) -> None:
        if status:
            raise EngineError(f"{name} failed: {errno.errorcode.get(ctypes.get_errno(), 'unknown error')}.")
