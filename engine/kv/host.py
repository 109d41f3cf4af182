"""The host tier: blocks in (pinned) host memory, found by key, evicted by a policy.

It knows keys and bytes, never tokens or tensors. A block can be found only once it is filled; a block that anybody
holds is neither evicted nor overwritten. Every method may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from energyopt.core.errors import ConfigError, EngineError

from .events import EventLog
from .eviction import EvictionPolicy, make_policy
from .inflight import named_by
from .tier_counter import TierCounter

HOST = "host"


class HostBlock:
    """A slot of the host tier in use for ``key``; satisfies ``buffers.Buffer``."""

    def __init__(self, tier: HostTier, key: bytes, slot: int, view: memoryview) -> None:
        self.key = key
        self.slot = slot
        self.holds = 1
        self.checksum: int | None = None
        self._tier = tier
        self._view = view

    @property
    def view(self) -> memoryview:
        return self._view

    def filled(self, checksum: int) -> None:
        """The content is whole: the block can be found from now on."""
        self._tier.publish(self, checksum)

    def hold(self) -> None:
        self._tier.hold(self)

    def release(self) -> None:
        self._tier.release(self)


class HostTier:
    """``memory`` cut into slots of ``block_bytes``. Raises ConfigError if that is not one."""

    def __init__(self, memory: memoryview, block_bytes: int, *, eviction: str = "lru") -> None:
        self.capacity = len(memory) // block_bytes
        if self.capacity < 1:
            raise ConfigError(
                f"The host tier has no room: it is {len(memory)} bytes, and one KV block takes {block_bytes}."
            )
        self.counter = TierCounter(HOST)
        self._memory = memory
        self._block_bytes = block_bytes
        self._policy: EvictionPolicy = make_policy(eviction, self.capacity)
        self._lock = threading.Lock()
        self._free = list(range(self.capacity - 1, -1, -1))
        self._ready: dict[bytes, HostBlock] = {}
        self._filling: dict[bytes, HostBlock] = {}
        self._doomed: set[HostBlock] = set()
        self._log: EventLog | None = None

    @property
    def num_cached(self) -> int:
        """Blocks that can be found."""
        return len(self._ready)

    def watch(self, log: EventLog | None) -> None:
        """Note in ``log`` all blocks that can be found, and from now on what becomes of them; None ends that."""
        with self._lock:
            self._log = log
            if log is not None:
                log.cleared(HOST)
                for key in self._ready:
                    log.stored(HOST, *named_by(key))

    def has(self, key: bytes) -> bool:
        """Whether the whole block is here."""
        return key in self._ready

    def expects(self, key: bytes) -> bool:
        """Whether the block is here or being filled: no second copy is wanted."""
        return key in self._ready or key in self._filling

    def touch(self, keys: Iterable[bytes]) -> None:
        """Keys of a chain, head first, were used: its tail shall be evicted before its head."""
        with self._lock:
            for key in reversed(tuple(keys)):
                if key in self._ready:
                    self._policy.touch(key)

    def take(self, key: bytes) -> HostBlock | None:
        """Hold the block of ``key`` for reading; None if it is not here."""
        with self._lock:
            block = self._ready.get(key)
            if block is not None:
                block.holds += 1
            return block

    def reserve(self, key: bytes) -> HostBlock | None:
        """A held slot to fill for ``key``; None if it is here or on its way, or every slot is held."""
        with self._lock:
            if self.expects(key):
                return None
            if not self._free and not self._evict_for(key):
                return None
            slot = self._free.pop()
            at = slot * self._block_bytes
            block = HostBlock(self, key, slot, self._memory[at : at + self._block_bytes])
            self._filling[key] = block
            return block

    def publish(self, block: HostBlock, checksum: int) -> None:
        """A reserved block is filled. One that was reset meanwhile stays unknown."""
        with self._lock:
            if block.checksum is not None:
                raise EngineError(f"Host slot {block.slot} was filled twice.")
            block.checksum = checksum
            if self._filling.get(block.key) is block:
                del self._filling[block.key]
                self._ready[block.key] = block
                self._policy.add(block.key)
                if self._log is not None:
                    self._log.stored(HOST, *named_by(block.key))

    def hold(self, block: HostBlock) -> None:
        with self._lock:
            block.holds += 1

    def release(self, block: HostBlock) -> None:
        """End one hold; the last one frees a slot that was never filled, or was reset or dropped meanwhile."""
        with self._lock:
            block.holds -= 1
            if block.holds < 0:
                raise EngineError(f"Host slot {block.slot} was released, but nobody holds it.")
            if block.holds:
                return
            if self._filling.get(block.key) is block:
                del self._filling[block.key]
                self._free.append(block.slot)
            elif block in self._doomed:
                self._doomed.discard(block)
                self._free.append(block.slot)

    def drop(self, block: HostBlock) -> None:
        """Forget a block whose content proved bad."""
        with self._lock:
            if self._ready.get(block.key) is block:
                self._forget(block)

    def reset(self) -> int:
        """Forget every block; returns how many could be found. Slots that somebody holds become free later."""
        with self._lock:
            blocks = tuple(self._ready.values())
            for block in blocks:
                self._forget(block)
            for block in self._filling.values():
                self._doomed.add(block)
            self._filling.clear()
            return len(blocks)

    def check_integrity(self) -> None:
        """Raise EngineError unless every slot is free, findable, being filled or doomed, exactly once. O(slots)."""
        with self._lock:
            blocks = [*self._ready.values(), *self._filling.values(), *self._doomed]
            slots = sorted([*self._free, *(block.slot for block in blocks)])
            if slots != list(range(self.capacity)):
                raise EngineError("The host tier lost or doubled a slot.")
            if any(block.holds < 1 for block in (*self._filling.values(), *self._doomed)):
                raise EngineError("The host tier keeps a slot for nobody.")

    def _evict_for(self, key: bytes) -> bool:
        victim = self._policy.victim(key, lambda other: self._ready[other].holds > 0)
        if victim is None:
            return False
        self._free.append(self._ready.pop(victim).slot)
        self._gone(victim)
        self.counter.evicted()
        return True

    def _forget(self, block: HostBlock) -> None:
        del self._ready[block.key]
        self._gone(block.key)
        self._policy.discard(block.key)
        if block.holds:
            self._doomed.add(block)
        else:
            self._free.append(block.slot)

    def _gone(self, key: bytes) -> None:
        if self._log is not None:
            self._log.removed(HOST, *named_by(key))
