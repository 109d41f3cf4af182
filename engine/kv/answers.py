"""What a store said lately about which keys it has, so that a step never waits for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from energyopt.core.clock import Clock

FRESH = 2.0
"""Seconds that an answer is believed: as long as a prefix that another engine stored may stay unnoticed."""

REMEMBERED = 1 << 17


class Answers:
    """Answers and open questions by key; both end by themselves. Thread-safe.

    A question that is open for longer than ``patience`` counts as answered with no.
    """

    def __init__(self, clock: Clock, *, fresh: float = FRESH, patience: float, remembered: int = REMEMBERED) -> None:
        self._clock = clock
        self._fresh = fresh
        self._patience = patience
        self._remembered = remembered
        self._known: OrderedDict[bytes, tuple[bool, float]] = OrderedDict()
        self._asked: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bool | None:
        """The fresh answer; None where there is none."""
        found = self._known.get(key)
        if found is None or found[1] < self._clock.now():
            return None
        return found[0]

    def overdue(self, key: bytes) -> bool:
        """Whether the question has waited longer than ``patience``."""
        asked = self._asked.get(key)
        return asked is not None and self._clock.now() - asked > self._patience

    def to_ask(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those without answer that nobody asks yet; they count as asked from now on."""
        with self._lock:
            fresh = [key for key in keys if key not in self._asked and self.get(key) is None]
            self._asked.update(dict.fromkeys(fresh, self._clock.now()))
            return fresh

    def tell(self, keys: Sequence[bytes], known: Sequence[bool]) -> None:
        """The store's answers."""
        until = self._clock.now() + self._fresh
        with self._lock:
            for key, answer in zip(keys, known, strict=True):
                self._asked.pop(key, None)
                self._known.pop(key, None)
                self._known[key] = (answer, until)
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)

    def drop(self, keys: Iterable[bytes]) -> None:
        """Questions that will get no answer."""
        with self._lock:
            for key in keys:
                self._asked.pop(key, None)

    def clear(self) -> int:
        """Forget every answer; returns how many said yes."""
        with self._lock:
            count = sum(1 for known, _ in self._known.values() if known)
            self._known.clear()
            return count
