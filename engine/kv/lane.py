"""A daemon thread that runs jobs one after another, urgent ones first."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

LOAD, STORE = 0, 1
"""Urgency: a request waits for a load, nobody for a store."""
_END = 2

Job = Callable[[], None]


@dataclass(order=True)
class _Queued:
    urgency: int
    number: int
    job: Job = field(compare=False)


class Lane:
    """Runs what is submitted, on a thread named ``name``, until it is closed.

    A job answers for its own errors; one that raises all the same is logged and the next one runs. The thread is a
    daemon: a foreign call that never returns must not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.PriorityQueue[_Queued] = queue.PriorityQueue()
        self._lock = threading.Lock()
        self._number = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, urgency: int = STORE) -> bool:
        """Queue a job; False, and it will not run, after ``close``."""
        with self._lock:
            if self._closed:
                return False
            self._put(urgency, job)
            return True

    def close(self, timeout: float) -> bool:
        """Run what is queued, then end; False if that takes longer than ``timeout`` seconds. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._put(_END, _nothing)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, urgency: int, job: Job) -> None:
        self._jobs.put(_Queued(urgency, self._number, job))
        self._number += 1

    def _run(self) -> None:
        while (queued := self._jobs.get()).urgency != _END:
            try:
                queued.job()
            except Exception as error:  # the border of the thread: it must outlive any job, and says why
                logger.error("A KV transfer failed unexpectedly: %s: %s", type(error).__name__, error, exc_info=error)


def _nothing() -> None:
    """What the end of a lane runs."""
