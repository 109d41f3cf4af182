"""What the router has done since it started: counters for its metrics page, written by one event loop."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from telemetry.router_catalog import DELAYS, FIRST_BYTES, WAITS


class Distribution:
    """Observations by bucket; ``bounds`` are upper bounds, inclusive."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counts:
    """``requests`` by (backend, outcome), the outcome being a status or "broken" or "gone"."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.hit_tokens: Counter[str] = Counter()
        self.event_gaps: Counter[str] = Counter()
        self.delay = Distribution(DELAYS)
        self.queued = Distribution(WAITS)
        self._first_byte: dict[str, Distribution] = {}

    def first_byte(self, backend: str) -> Distribution:
        """Seconds from the request's way to the backend to the first byte of its answer."""
        return self._first_byte.setdefault(backend, Distribution(FIRST_BYTES))

    @property
    def first_bytes(self) -> dict[str, Distribution]:
        return self._first_byte
