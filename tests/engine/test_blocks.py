"""The block pool against a model of it that is too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from energyopt.core.errors import ConfigError, EngineError
from engine.kv.blocks import BlockPool


def name(number: int) -> bytes:
    return number.to_bytes(2, "big")


class PoolModel(RuleBasedStateMachine):
    """The model: reference counts in a dict, hashes in a dict, and the idle queue as a plain list."""

    @initialize(size=st.integers(1, 8))
    def make(self, size: int) -> None:
        self.pool = BlockPool(size)
        self.size = size
        self.refs: dict[int, int] = {}
        self.hashes: dict[int, bytes] = {}
        self.queue = list(range(size))

    @rule(count=st.integers(0, 8))
    def allocate(self, count: int) -> None:
        if count > len(self.queue):
            with pytest.raises(EngineError, match=rf"{count} KV blocks"):
                self.pool.allocate(count)
            return
        expected, self.queue = self.queue[:count], self.queue[count:]
        evictions = self.pool.evictions + sum(block in self.hashes for block in expected)
        assert self.pool.allocate(count) == expected
        assert self.pool.evictions == evictions
        for block in expected:
            self.hashes.pop(block, None)
            self.refs[block] = 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.refs)), unique=True, min_size=1))
        self.pool.free(chosen)
        for block in chosen:
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]
                self.queue.insert(len(self.queue) if block in self.hashes else 0, block)

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.hashes)))
        assert self.pool.find(self.hashes[block]) == block
        assert self.pool.is_idle(block) == (block not in self.refs)
        self.pool.touch([block])
        self.refs[block] = self.refs.get(block, 0) + 1
        if block in self.queue:
            self.queue.remove(block)

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), number=st.integers(0, 2))
    def register(self, data: st.DataObject, number: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.refs)))
        self.pool.register(block, name(number))
        holder = next((b for b, other in self.hashes.items() if other == name(number)), None)
        if holder == block or holder in self.refs:
            return
        if holder is not None:
            del self.hashes[holder]
            self.queue.remove(holder)
            self.queue.insert(0, holder)
        self.hashes[block] = name(number)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == len(self.hashes)
        self.hashes.clear()

    @invariant()
    def agrees(self) -> None:
        cached = sum(block in self.hashes for block in self.queue)
        assert self.pool.num_available == len(self.queue)
        assert self.pool.num_cached == cached
        assert self.pool.num_free == len(self.queue) - cached
        assert self.pool.num_used == len(self.refs)
        for number in range(3):
            holder = next((b for b, other in self.hashes.items() if other == name(number)), None)
            assert self.pool.find(name(number)) == holder
        self.pool.check_integrity(self.refs)


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_worthless_blocks_are_reused_before_any_cached_one() -> None:
    pool = BlockPool(4)
    cached = pool.allocate(2)
    for number, block in enumerate(cached):
        pool.register(block, name(number))
    pool.free(reversed(cached))
    for _ in range(50):
        pool.free(pool.allocate(2))
    assert [pool.find(name(number)) for number in range(2)] == cached
    assert pool.evictions == 0


def test_a_freed_tail_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for number, block in enumerate(blocks):
        pool.register(block, name(number))
    pool.free(reversed(blocks))
    assert pool.allocate(1) == [blocks[2]]
    assert pool.find(name(0)) == blocks[0]


def test_a_used_block_takes_over_the_hash_of_an_idle_one() -> None:
    pool = BlockPool(3)
    (first,) = pool.allocate(1)
    pool.register(first, name(0))
    pool.free([first])
    second, third = pool.allocate(2)
    pool.register(second, name(0))
    pool.register(third, name(0))
    assert pool.find(name(0)) == second
    assert pool.num_free == 1
    pool.check_integrity({second: 1, third: 1})


def test_double_free_is_an_error_and_changes_nothing() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(EngineError, match=f"KV block {block} was freed"):
        pool.free([block])
    pool.check_integrity({})


def test_an_idle_block_cannot_be_registered() -> None:
    with pytest.raises(EngineError, match="KV block 0 was registered"):
        BlockPool(2).register(0, name(0))


def test_integrity_names_references_that_nobody_holds() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(EngineError, match="reference counts differ"):
        pool.check_integrity({})


def test_integrity_finds_a_block_lost_from_the_queue() -> None:
    pool = BlockPool(3)
    pool._next[3] = 1  # block 0 falls out of the ring
    with pytest.raises(EngineError, match="other blocks than the idle ones"):
        pool.check_integrity()


def test_a_pool_has_blocks() -> None:
    with pytest.raises(ConfigError, match="pool of 0"):
        BlockPool(0)
