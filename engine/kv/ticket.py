"""A load or store that runs: counts its parts, and keeps late copies off the device once it has been given up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ticket:
    """``parts`` pieces of work that end in any order; ``ended`` is called once, with whether all went well.

    Fetching into host memory may be given up (``give_up``): the ticket then fails as soon as nothing writes to the
    device, and whatever is fetched later is thrown away. Thread-safe.
    """

    def __init__(self, number: int, parts: int, ended: Callable[[Ticket, bool], None]) -> None:
        self.number = number
        self._open = parts
        self._ended = ended
        self._lock = threading.Lock()
        self._writing = 0
        self._failed = False
        self._given_up = False
        self._done = False

    @property
    def live(self) -> bool:
        """Whether its result is still wanted."""
        return not (self._failed or self._given_up)

    def part_ended(self, good: bool) -> None:
        with self._lock:
            self._open -= 1
            self._failed |= not good
        self._settle()

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Around a copy to the device; yields False if the copy must not happen any more."""
        with self._lock:
            allowed = self.live
            self._writing += allowed
        try:
            yield allowed
        finally:
            with self._lock:
                self._writing -= allowed
            self._settle()

    def give_up(self) -> None:
        """Fail without waiting for parts that only fetch."""
        with self._lock:
            self._given_up = True
        self._settle()

    def _settle(self) -> None:
        with self._lock:
            over = self._open == 0 or self._given_up
            if self._done or self._writing or not over:
                return
            self._done = True
            good = not (self._failed or self._given_up)
        self._ended(self, good)
