"""Lower tiers without bytes: which blocks each tier would hold. For replays, and the base of the scripted fake.

A tier is a size in blocks and least-recently-used order. Blocks are saved to every tier and loaded from the first that
has them; every copy ends at the next ``poll``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from energyopt.core.errors import ConfigError

from .events import EventLog
from .ports import NOTHING, Found, TierCounts, TierEvents, Transfer


class NullTiers:
    """``capacities`` are blocks by tier name, the fastest first; None is without limit."""

    def __init__(self, capacities: Mapping[str, int | None]) -> None:
        self._capacities = dict(capacities)
        self._known: dict[str, OrderedDict[bytes, None]] = {name: OrderedDict() for name in capacities}
        self._evictions = dict.fromkeys(capacities, 0)
        self._moved = {name: [0, 0] for name in capacities}
        self._tickets = 0
        self._loaded: list[int] = []
        self._stored: list[int] = []

    def seen(self, keys: Sequence[bytes]) -> None:
        """A prefix that is asked for again is recent in every tier, its head more than its tail."""
        for known in self._known.values():
            for key in reversed(keys):
                if key in known:
                    known.move_to_end(key)

    def find(self, keys: Sequence[bytes], *, weigh: bool) -> Found:
        tiers: list[str] = []
        for key in keys:
            tier = self._first_with(key)
            if not tier:
                break
            tiers.append(tier)
        return Found(tuple(tiers))

    def locate(self, keys: Sequence[bytes]) -> Found:
        return Found(tuple(self._first_with(key) for key in keys))

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        """Nothing is known of what a load costs."""
        return True

    def load(self, transfers: Sequence[Transfer]) -> int | None:
        tiers = [self._first_with(transfer.key) for transfer in transfers]
        if not all(tiers):
            return None
        for tier in tiers:
            self._moved[tier][0] += 1
        # What comes from a slower tier passes through the faster ones.
        self._keep([transfer.key for transfer in transfers])
        self._tickets += 1
        self._loaded.append(self._tickets)
        return self._tickets

    def store(self, transfers: Sequence[Transfer]) -> int | None:
        if not self._keep([transfer.key for transfer in transfers]):
            return None
        self._tickets += 1
        self._stored.append(self._tickets)
        return self._tickets

    def poll(self) -> TierEvents:
        if not (self._loaded or self._stored):
            return NOTHING
        events = TierEvents(loaded=tuple(self._loaded), stored=tuple(self._stored))
        self._loaded, self._stored = [], []
        return events

    def wait(self, seconds: float) -> None:
        """There is never anything to wait for."""

    def watch(self, log: EventLog | None) -> None:
        """Nothing here is told to anybody."""

    def reset(self, tier: str | None = None) -> int:
        """Raises ConfigError for a tier that is not here."""
        if tier is not None and tier not in self._known:
            raise ConfigError(f"There is no KV tier {tier!r}: here are {', '.join(self._known)}.")
        forgotten = 0
        for name, known in self._known.items():
            if tier in (None, name):
                forgotten += len(known)
                known.clear()
        return forgotten

    def counts(self) -> tuple[TierCounts, ...]:
        return tuple(
            TierCounts(name, hits=loads, loads=loads, stores=stores, evictions=self._evictions[name])
            for name, (loads, stores) in self._moved.items()
        )

    def close(self) -> None:
        """Nothing runs."""

    def held(self, tier: str) -> int:
        """Blocks in a tier."""
        return len(self._known[tier])

    def _first_with(self, key: bytes) -> str:
        return next((name for name, known in self._known.items() if key in known), "")

    def _keep(self, keys: Sequence[bytes]) -> bool:
        """Put blocks into every tier, tail first, so that a prefix's head is its newest; False if none was new."""
        new = False
        for name, known in self._known.items():
            limit = self._capacities[name]
            for key in reversed(keys):
                if key in known:
                    known.move_to_end(key)
                    continue
                new = True
                known[key] = None
                self._moved[name][1] += 1
                if limit is not None and len(known) > limit:
                    known.popitem(last=False)
                    self._evictions[name] += 1
        return new
