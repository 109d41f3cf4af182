"""Which block a full tier gives up: policies over keys, without I/O, locks or bytes.

A policy knows the resident keys in its own order and is told of every change. It may also remember keys that left
(ghosts), which costs memory for keys but none for blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, Protocol

from energyopt.core.errors import ConfigError

EvictionName = Literal["lru", "arc"]

_Keys = OrderedDict[bytes, None]


class EvictionPolicy(Protocol):
    """Orders resident keys. ``victim`` takes its answer out; ``add`` must follow for the key it was asked for."""

    def victim(self, incoming: bytes, pinned: Callable[[bytes], bool]) -> bytes | None:
        """The resident key to give up for ``incoming``, no longer resident from now on; None if all are pinned."""
        ...

    def add(self, key: bytes) -> None:
        """``key`` is resident from now on."""
        ...

    def touch(self, key: bytes) -> None:
        """A resident key was used."""
        ...

    def discard(self, key: bytes) -> None:
        """``key`` left for another reason than ``victim``; nothing is remembered of it."""
        ...


class Lru:
    """Least recently used first."""

    def __init__(self) -> None:
        self._keys: _Keys = OrderedDict()

    def victim(self, incoming: bytes, pinned: Callable[[bytes], bool]) -> bytes | None:
        return _take_oldest(self._keys, pinned)

    def add(self, key: bytes) -> None:
        self._keys[key] = None

    def touch(self, key: bytes) -> None:
        self._keys.move_to_end(key)

    def discard(self, key: bytes) -> None:
        self._keys.pop(key, None)


class Arc:
    """Adaptive replacement (Megiddo and Modha, FAST 2003): a scan of keys used once does not flush those used twice.

    Resident keys lie in ``recent`` (used once) or ``frequent`` (used again); each has a list of ghosts, keys that left
    it lately. A returning ghost of ``recent`` raises ``target``, the share meant for ``recent``; one of ``frequent``
    lowers it. Residents and ghosts together are at most twice ``capacity``.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.recent: _Keys = OrderedDict()
        self.frequent: _Keys = OrderedDict()
        self.recent_ghosts: _Keys = OrderedDict()
        self.frequent_ghosts: _Keys = OrderedDict()

    def victim(self, incoming: bytes, pinned: Callable[[bytes], bool]) -> bytes | None:
        self._adapt(incoming)
        over = len(self.recent) - self.target
        take_recent = over > 0 or (over == 0 and incoming in self.frequent_ghosts)
        order = [(self.recent, self.recent_ghosts), (self.frequent, self.frequent_ghosts)]
        for residents, ghosts in order if take_recent else reversed(order):
            victim = _take_oldest(residents, pinned)
            if victim is not None:
                ghosts[victim] = None
                return victim
        return None

    def add(self, key: bytes) -> None:
        known = key in self.recent_ghosts or key in self.frequent_ghosts
        self.recent_ghosts.pop(key, None)
        self.frequent_ghosts.pop(key, None)
        (self.frequent if known else self.recent)[key] = None
        self._trim()

    def touch(self, key: bytes) -> None:
        if key in self.recent:
            del self.recent[key]
            self.frequent[key] = None
        else:
            self.frequent.move_to_end(key)

    def discard(self, key: bytes) -> None:
        self.recent.pop(key, None)
        self.frequent.pop(key, None)

    def _adapt(self, incoming: bytes) -> None:
        ours, others = len(self.recent_ghosts), len(self.frequent_ghosts)
        if incoming in self.recent_ghosts:
            self.target = min(self.target + max(others / ours, 1.0), float(self.capacity))
        elif incoming in self.frequent_ghosts:
            self.target = max(self.target - max(ours / others, 1.0), 0.0)

    def _trim(self) -> None:
        while self.recent_ghosts and len(self.recent) + len(self.recent_ghosts) > self.capacity:
            self.recent_ghosts.popitem(last=False)
        lists = (self.recent, self.frequent, self.recent_ghosts, self.frequent_ghosts)
        while self.frequent_ghosts and sum(map(len, lists)) > 2 * self.capacity:
            self.frequent_ghosts.popitem(last=False)


def make_policy(name: str, capacity: int) -> EvictionPolicy:
    """The policy of that name for a tier of ``capacity`` blocks. Raises ConfigError for an unknown name."""
    if name == "lru":
        return Lru()
    if name == "arc":
        return Arc(capacity)
    raise ConfigError(f"The eviction policy {name!r} is not known: allowed are lru and arc.")


def _take_oldest(keys: _Keys, pinned: Callable[[bytes], bool]) -> bytes | None:
    for key in keys:
        if not pinned(key):
            del keys[key]
            return key
    return None
