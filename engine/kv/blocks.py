"""The pool of KV blocks: who uses which, which hold a cached prefix, and which is reused next.

It knows ids, reference counts and hashes, never tokens or tensors. A block is *used* (referenced), *cached* (idle,
but its hash can still be hit) or *free* (idle and worthless); the three always sum to the size of the pool.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from energyopt.core.errors import ConfigError, EngineError

from .events import EventLog

DEVICE = "device"
"""What this pool is called among the tiers."""


class BlockPool:
    """``num_blocks`` blocks with one queue of idle ones, reused from its head.

    An idle block without a hash goes to the head, one with a hash to the tail: nothing that could still be hit is
    evicted while something worthless is idle. Free a request's blocks last one first, so that its tail is evicted
    before its head. Each of ``num_groups`` groups of layers has hashes of its own; the queue serves all. Every
    operation is O(1) per block: the queue is a doubly linked list in two arrays, with index ``num_blocks`` as its
    sentinel. A cached block costs about 180 bytes: two map slots, its hash, and 13 bytes of arrays.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        if num_blocks < 1:
            raise ConfigError(f"A pool of {num_blocks} KV blocks is not allowed: it must have at least 1.")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._refs = array("i", bytes(4 * num_blocks))
        self._groups = bytearray(num_blocks)
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._partial: dict[int, bytes] = {}
        self._log: EventLog | None = None
        self._next = array("i", [*range(1, num_blocks + 1), 0])
        self._prev = array("i", [num_blocks, *range(num_blocks)])
        self._idle = num_blocks
        self._idle_hashed = 0

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can give: free and cached ones."""
        return self._idle

    @property
    def num_free(self) -> int:
        return self._idle - self._idle_hashed

    @property
    def num_cached(self) -> int:
        return self._idle_hashed

    @property
    def num_used(self) -> int:
        return self.num_blocks - self._idle

    def watch(self, log: EventLog | None) -> None:
        """Note in ``log`` all whole blocks that can be found, and from now on what becomes of them; None ends that."""
        self._log = log
        if log is not None:
            log.cleared(DEVICE)
            for block, name in enumerate(self._hashes):
                if name is not None:
                    log.stored(DEVICE, self._groups[block], name)

    def find(self, block_hash: bytes, group: int = 0) -> int | None:
        """The block that holds this hash for this group, used or idle."""
        return self._by_hash[group].get(block_hash)

    def find_prefix(self, hashes: Iterable[bytes], group: int = 0) -> list[int]:
        """The blocks of the longest known prefix of ``hashes``."""
        known = self._by_hash[group]
        blocks: list[int] = []
        for block_hash in hashes:
            block = known.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def next_reused(self, count: int) -> list[tuple[int, bytes, int]]:
        """Block, hash and group of the whole cached blocks among the ``count`` that would be reused next."""
        found: list[tuple[int, bytes, int]] = []
        block = self._next[self.num_blocks]
        for _ in range(min(count, self._idle)):
            name = self._hashes[block]
            if name is not None:
                found.append((block, name, self._groups[block]))
            block = self._next[block]
        return found

    def is_idle(self, block: int) -> bool:
        return self._refs[block] == 0

    def count_idle(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` nobody uses."""
        return [self._refs[block] for block in blocks].count(0)

    def is_shared(self, block: int) -> bool:
        """Whether others may read the block now or find it by a hash: who writes it must copy it first."""
        return self._refs[block] > 1 or self._hashes[block] is not None or block in self._partial

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each; cached ones lose their hash. Raises EngineError if too few idle."""
        if count > self._idle:
            raise EngineError(f"{count} KV blocks were asked for, {self._idle} of {self.num_blocks} are idle.")
        after, refs, hashes, partial = self._next, self._refs, self._hashes, self._partial
        blocks = []
        evicted = 0
        block = after[self.num_blocks]
        for _ in range(count):
            blocks.append(block)
            refs[block] = 1
            if hashes[block] is not None or block in partial:
                self._forget(block)
                evicted += 1
            block = after[block]
        after[self.num_blocks], self._prev[block] = block, self.num_blocks
        self._idle -= count
        self._idle_hashed -= evicted
        self.evictions += evicted
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """One more reference to each block; idle ones leave the queue and keep their hash."""
        refs, hashes, partial, after, before = self._refs, self._hashes, self._partial, self._next, self._prev
        for block in blocks:
            if refs[block] == 0:  # ``_unlink`` written out
                left, right = before[block], after[block]
                after[left], before[right] = right, left
                self._idle -= 1
                self._idle_hashed -= hashes[block] is not None or block in partial
            refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One reference fewer to each, in the order given. Raises EngineError for a block that has none."""
        refs, hashes, partial, after, before = self._refs, self._hashes, self._partial, self._next, self._prev
        sentinel = self.num_blocks
        for block in blocks:
            count = refs[block]
            if count == 0:
                raise EngineError(f"KV block {block} was freed, but nothing uses it.")
            refs[block] = count - 1
            if count > 1:
                continue
            # Into the queue: before the sentinel (tail) with a hash, behind it (head) without one.
            cached = hashes[block] is not None or block in partial
            left = before[sentinel] if cached else sentinel
            right = after[left]
            after[left] = before[right] = block
            before[block], after[block] = left, right
            self._idle += 1
            self._idle_hashed += cached

    def register(self, block: int, block_hash: bytes, group: int = 0) -> None:
        """Let a used, fully computed block be found by its hash.

        If an idle block has the same hash, this one takes its place: a block in use cannot be evicted. If a used
        block has it, that one stays the one to be found and this one remains without.
        """
        known = self._by_hash[group]
        if (self._refs[block] == 0 or block_hash in known) and not self._claim(block, block_hash, group):
            return
        old = self._hashes[block]
        if old is not None:
            del self._by_hash[self._groups[block]][old]
        if self._log is not None:
            if old is not None:
                self._log.removed(DEVICE, self._groups[block], old)
            self._log.stored(DEVICE, group, block_hash)
        self._hashes[block] = block_hash
        self._groups[block] = group
        known[block_hash] = block

    def register_partial(self, block: int, block_hash: bytes, group: int = 0) -> None:
        """Let a used block be found also by the hash of a boundary inside it; one such hash a block, the last given."""
        if not self._claim(block, block_hash, group):
            return
        if (old := self._partial.pop(block, None)) is not None:
            del self._by_hash[self._groups[block]][old]
        self._partial[block] = block_hash
        self._groups[block] = group
        self._by_hash[group][block_hash] = block

    def reset(self) -> int:
        """Forget every hash; returns how many. Used blocks stay used."""
        forgotten = sum(len(known) for known in self._by_hash)
        self._hashes = [None] * self.num_blocks
        self._partial.clear()
        for known in self._by_hash:
            known.clear()
        self._idle_hashed = 0
        if self._log is not None:
            self._log.cleared(DEVICE)
        return forgotten

    def check_integrity(self, references: Mapping[int, int] | None = None) -> None:
        """Raise EngineError unless every block is accounted for exactly once.

        ``references``, if given, is what every used block's count must be (a block not in it must be idle). O(pool).
        """
        queue = self._queue()
        idle = [block for block in range(self.num_blocks) if self._refs[block] == 0]
        hashed = [self._hashed(block) for block in queue]
        problems = {
            "the queue holds other blocks than the idle ones": sorted(queue) != idle,
            "the count of idle blocks is wrong": len(queue) != self._idle,
            "the count of cached blocks is wrong": sum(hashed) != self._idle_hashed,
            "a worthless block is queued behind a cached one": hashed != sorted(hashed),
            "free + cached + used is not the total": self.num_free + self.num_cached + self.num_used != self.num_blocks,
            "hash map and blocks disagree": self._by_hash != self._names(),
            "reference counts differ from the requests' blocks": references is not None
            and dict(references) != {block: count for block, count in enumerate(self._refs) if count},
        }
        broken = [what for what, wrong in problems.items() if wrong]
        if broken:
            raise EngineError(f"The KV block pool is inconsistent: {'; '.join(broken)}.")

    def _names(self) -> tuple[dict[bytes, int], ...]:
        """The maps as the blocks' own notes have them."""
        maps: Sequence[dict[bytes, int]] = tuple({} for _ in self._by_hash)
        for block, name in enumerate(self._hashes):
            if name is not None:
                maps[self._groups[block]][name] = block
        for block, name in self._partial.items():
            maps[self._groups[block]][name] = block
        return tuple(maps)

    def _queue(self) -> list[int]:
        """Idle blocks from head to tail; stops after ``num_blocks`` so that a broken ring ends too."""
        order: list[int] = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks and len(order) <= self.num_blocks:
            order.append(block)
            block = self._next[block]
        return order

    def _hashed(self, block: int) -> bool:
        return self._hashes[block] is not None or block in self._partial

    def _claim(self, block: int, block_hash: bytes, group: int) -> bool:
        """Whether a used block may take a hash; an idle holder loses it."""
        if self._refs[block] == 0:
            raise EngineError(f"KV block {block} was registered, but nothing uses it.")
        known = self._by_hash[group]
        holder = known.get(block_hash)
        if holder is None:
            return True
        if self._refs[holder] > 0:
            return False
        self._unlink(holder)
        del known[block_hash]
        if self._hashes[holder] == block_hash:
            self._hashes[holder] = None
        else:
            del self._partial[holder]
        self._refs[holder] = 1
        self.free((holder,))
        return True

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._idle -= 1
        self._idle_hashed -= self._hashes[block] is not None or block in self._partial

    def _forget(self, block: int) -> None:
        """Drop the hashes of a block that is not in the queue."""
        known = self._by_hash[self._groups[block]]
        if (name := self._hashes[block]) is not None:
            self._hashes[block] = None
            del known[name]
            if self._log is not None:
                self._log.removed(DEVICE, self._groups[block], name)
        if (name := self._partial.pop(block, None)) is not None:
            del known[name]
