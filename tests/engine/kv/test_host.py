"""The host tier: visible only when whole, held blocks stay, no slot is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from energyopt.core.errors import ConfigError, EngineError
from engine.kv.checksum import checksum
from engine.kv.host import HostBlock, HostTier

SIZE = 8


def _tier(blocks: int, eviction: str = "lru") -> HostTier:
    return HostTier(memoryview(bytearray(blocks * SIZE)), SIZE, eviction=eviction)


def _store(tier: HostTier, key: bytes) -> HostBlock:
    block = tier.reserve(key)
    assert block is not None
    block.view[:] = key.ljust(SIZE)
    block.filled(checksum(block.view))
    return block


def test_a_block_is_found_only_once_it_is_filled() -> None:
    tier = _tier(2)
    block = tier.reserve(b"a")
    assert block is not None
    assert not tier.has(b"a")
    assert tier.expects(b"a")
    assert tier.take(b"a") is None
    block.filled(1)
    assert tier.has(b"a")


def test_a_slot_that_was_never_filled_comes_back() -> None:
    tier = _tier(1)
    block = tier.reserve(b"a")
    assert block is not None
    assert tier.reserve(b"b") is None
    block.release()
    assert not tier.expects(b"a")
    assert tier.reserve(b"b") is not None


def test_a_held_block_is_not_evicted() -> None:
    tier = _tier(2)
    _store(tier, b"a")
    _store(tier, b"b").release()
    _store(tier, b"c").release()
    assert tier.has(b"a")
    assert not tier.has(b"b")
    assert tier.counter.snapshot().evictions == 1


def test_the_tail_of_a_used_chain_goes_first() -> None:
    tier = _tier(3)
    for key in (b"1", b"2", b"3"):
        _store(tier, key).release()
    tier.touch([b"1", b"2", b"3"])
    _store(tier, b"x").release()
    assert [tier.has(key) for key in (b"1", b"2", b"3")] == [True, True, False]


def test_reset_forgets_all_and_frees_held_slots_later() -> None:
    tier = _tier(2)
    held = _store(tier, b"a")
    filling = tier.reserve(b"b")
    assert filling is not None
    assert tier.reset() == 1
    assert tier.reserve(b"c") is None, "a slot under a copy was given away"
    filling.filled(1)
    assert not tier.has(b"b")
    held.release()
    filling.release()
    tier.check_integrity()
    assert tier.reserve(b"c") is not None
    assert tier.reserve(b"d") is not None


def test_misuse_is_told() -> None:
    tier = _tier(1)
    block = _store(tier, b"a")
    with pytest.raises(EngineError, match="filled twice"):
        block.filled(1)
    block.release()
    with pytest.raises(EngineError, match="nobody holds it"):
        block.release()
    with pytest.raises(ConfigError, match="no room: it is 3 bytes, and one KV block takes 8"):
        HostTier(memoryview(bytearray(3)), SIZE)


class HostMachine(RuleBasedStateMachine):
    """Random use of a small tier; what is found is what was stored, and slots add up at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = _tier(4, "arc")
        self.open: list[HostBlock] = []
        self.held: list[HostBlock] = []

    @rule(key=st.integers(0, 7))
    def reserve(self, key: int) -> None:
        block = self.tier.reserve(b"%d" % key)
        if block is not None:
            self.open.append(block)

    @rule(at=st.integers(0, 3))
    def fill(self, at: int) -> None:
        if at < len(self.open):
            block = self.open.pop(at)
            block.view[:] = block.key.ljust(SIZE)
            block.filled(checksum(block.view))
            self.held.append(block)

    @rule(at=st.integers(0, 3))
    def abandon(self, at: int) -> None:
        if at < len(self.open):
            self.open.pop(at).release()

    @rule(at=st.integers(0, 7))
    def release(self, at: int) -> None:
        if at < len(self.held):
            self.held.pop(at).release()

    @rule(key=st.integers(0, 7))
    def take(self, key: int) -> None:
        block = self.tier.take(b"%d" % key)
        if block is not None:
            self.held.append(block)

    @rule(key=st.integers(0, 7))
    def drop(self, key: int) -> None:
        block = self.tier.take(b"%d" % key)
        if block is not None:
            self.tier.drop(block)
            block.release()
            assert not self.tier.has(b"%d" % key)

    @rule()
    def reset(self) -> None:
        self.tier.reset()
        assert self.tier.num_cached == 0

    @invariant()
    def slots_add_up_and_held_content_stays(self) -> None:
        self.tier.check_integrity()
        for block in self.held:
            assert bytes(block.view) == block.key.ljust(SIZE)
            assert checksum(block.view) == block.checksum


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
