"""The pool of KV blocks: who uses which, which hold a cached prefix, and which is reused next.

It knows ids, reference counts and hashes, never tokens or tensors. A block is *used* (referenced), *cached* (idle,
but its hash can still be hit) or *free* (idle and worthless); the three always sum to the size of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from energyopt.core.errors import ConfigError, EngineError


class BlockPool:
    """``num_blocks`` blocks with one queue of idle ones, reused from its head.

    An idle block without a hash goes to the head, one with a hash to the tail: nothing that could still be hit is
    evicted while something worthless is idle. Free a request's blocks last one first, so that its tail is evicted
    before its head. Every operation is O(1) per block: the queue is a doubly linked list in two arrays, with index
    ``num_blocks`` as its sentinel.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"A pool of {num_blocks} KV blocks is not allowed: it must have at least 1.")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]
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

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds this hash, used or idle."""
        return self._by_hash.get(block_hash)

    def is_idle(self, block: int) -> bool:
        return self._refs[block] == 0

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one reference each; cached ones lose their hash. Raises EngineError if too few idle."""
        if count > self._idle:
            raise EngineError(f"{count} KV blocks were asked for, {self._idle} of {self.num_blocks} are idle.")
        blocks = []
        for _ in range(count):
            block = self._next[self.num_blocks]
            self._unlink(block)
            if self._hashes[block] is not None:
                self._forget(block)
                self.evictions += 1
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """One more reference to each block; idle ones leave the queue and keep their hash."""
        for block in blocks:
            if self._refs[block] == 0:
                self._unlink(block)
            self._refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One reference fewer to each, in the order given. Raises EngineError for a block that has none."""
        for block in blocks:
            if self._refs[block] == 0:
                raise EngineError(f"KV block {block} was freed, but nothing uses it.")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._link(block)

    def register(self, block: int, block_hash: bytes) -> None:
        """Let a used, fully computed block be found by its hash.

        If an idle block has the same hash, this one takes its place: a block in use cannot be evicted. If a used
        block has it, that one stays the one to be found and this one remains without.
        """
        if self._refs[block] == 0:
            raise EngineError(f"KV block {block} was registered, but nothing uses it.")
        holder = self._by_hash.get(block_hash)
        if holder == block or (holder is not None and self._refs[holder] > 0):
            return
        if holder is not None:
            self._unlink(holder)
            self._forget(holder)
            self._link(holder)
        if self._hashes[block] is not None:
            self._forget(block)
        self._hashes[block] = block_hash
        self._by_hash[block_hash] = block

    def reset(self) -> int:
        """Forget every hash; returns how many. Used blocks stay used."""
        forgotten = len(self._by_hash)
        for block in self._by_hash.values():
            self._hashes[block] = None
        self._by_hash.clear()
        self._idle_hashed = 0
        return forgotten

    def check_integrity(self, references: Mapping[int, int] | None = None) -> None:
        """Raise EngineError unless every block is accounted for exactly once.

        ``references``, if given, is what every used block's count must be (a block not in it must be idle). O(pool).
        """
        queue = self._queue()
        idle = [block for block in range(self.num_blocks) if self._refs[block] == 0]
        hashed = [self._hashes[block] is not None for block in queue]
        problems = {
            "the queue holds other blocks than the idle ones": sorted(queue) != idle,
            "the count of idle blocks is wrong": len(queue) != self._idle,
            "the count of cached blocks is wrong": sum(hashed) != self._idle_hashed,
            "a worthless block is queued behind a cached one": hashed != sorted(hashed),
            "free + cached + used is not the total": self.num_free + self.num_cached + self.num_used != self.num_blocks,
            "hash map and blocks disagree": self._by_hash
            != {name: block for block, name in enumerate(self._hashes) if name is not None},
            "reference counts differ from the requests' blocks": references is not None
            and dict(references) != {block: count for block, count in enumerate(self._refs) if count},
        }
        broken = [what for what, wrong in problems.items() if wrong]
        if broken:
            raise EngineError(f"The KV block pool is inconsistent: {'; '.join(broken)}.")

    def _queue(self) -> list[int]:
        """Idle blocks from head to tail; stops after ``num_blocks`` so that a broken ring ends too."""
        order: list[int] = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks and len(order) <= self.num_blocks:
            order.append(block)
            block = self._next[block]
        return order

    def _link(self, block: int) -> None:
        """Put an idle block into the queue: behind the sentinel (head) without a hash, before it (tail) with one."""
        sentinel = self.num_blocks
        cached = self._hashes[block] is not None
        before = self._prev[sentinel] if cached else sentinel
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self._idle += 1
        self._idle_hashed += cached

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._idle -= 1
        self._idle_hashed -= self._hashes[block] is not None

    def _forget(self, block: int) -> None:
        """Drop the hash of a block that is not in the queue."""
        block_hash = self._hashes[block]
        if block_hash is not None:
            self._hashes[block] = None
            del self._by_hash[block_hash]
