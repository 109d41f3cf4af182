"""Admission after N sightings: a block that one request alone ever had is not worth a copy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from energyopt.core.errors import ConfigError

TRACKED = 1 << 16
"""Keys remembered, the least recently seen forgotten first; about 10 MB."""


class Sightings:
    """Counts in how many requests each key was seen, for the newest ``TRACKED`` keys.

    With ``needed`` 1 everything is admitted and nothing is remembered.
    """

    def __init__(self, needed: int = 1, *, tracked: int = TRACKED) -> None:
        if needed < 1:
            raise ConfigError(f"Admission after {needed} sightings is not allowed: it must be at least 1.")
        self.needed = needed
        self._tracked = tracked
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def seen(self, keys: Iterable[bytes]) -> None:
        """One more request has these keys."""
        if self.needed == 1:
            return
        for key in keys:
            self._counts[key] = self._counts.pop(key, 0) + 1
        while len(self._counts) > self._tracked:
            self._counts.popitem(last=False)

    def admits(self, key: bytes) -> bool:
        return self.needed == 1 or self._counts.get(key, 0) >= self.needed
