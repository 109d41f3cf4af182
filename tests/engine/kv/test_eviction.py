"""Eviction policies: order, pins, and the bounds of ARC."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from engine.kv.eviction import Arc, EvictionPolicy, Lru, make_policy


def _nobody(key: bytes) -> bool:
    return False


class _Cache:
    """The smallest user of a policy: counts hits."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy, self.capacity, self.keys, self.hits = policy, capacity, set[bytes](), 0

    def use(self, number: int) -> None:
        key = b"%d" % number
        if key in self.keys:
            self.hits += 1
            self.policy.touch(key)
            return
        if len(self.keys) == self.capacity:
            victim = self.policy.victim(key, _nobody)
            assert victim is not None
            self.keys.remove(victim)
        self.policy.add(key)
        self.keys.add(key)


@given(st.lists(st.integers(0, 12)), st.integers(1, 6))
def test_lru_is_what_an_ordered_dict_does(uses: list[int], capacity: int) -> None:
    cache, twin = _Cache(Lru(), capacity), OrderedDict[bytes, None]()
    for use in uses:
        cache.use(use)
        key = b"%d" % use
        if key not in twin and len(twin) == capacity:
            twin.popitem(last=False)
        twin[key] = None
        twin.move_to_end(key)
        assert cache.keys == set(twin)


@given(st.lists(st.integers(0, 30)), st.integers(1, 8))
def test_arc_keeps_its_bounds(uses: list[int], capacity: int) -> None:
    policy = Arc(capacity)
    cache = _Cache(policy, capacity)
    for use in uses:
        cache.use(use)
        lists = (policy.recent, policy.frequent, policy.recent_ghosts, policy.frequent_ghosts)
        assert set(policy.recent) | set(policy.frequent) == cache.keys
        assert sum(map(len, lists)) == len(set().union(*lists)) <= 2 * capacity
        assert len(policy.recent) + len(policy.recent_ghosts) <= capacity
        assert 0 <= policy.target <= capacity


def test_arc_keeps_what_is_used_twice_through_a_scan_and_lru_does_not() -> None:
    hits = {}
    for name in ("lru", "arc"):
        cache = _Cache(make_policy(name, 100), 100)
        chance = random.Random(7)
        scanned = 1000
        for _ in range(200):
            for _ in range(10):
                cache.use(chance.randrange(60))
            for _ in range(20):
                scanned += 1
                cache.use(scanned)
        hits[name] = cache.hits
    assert hits["arc"] > 1.3 * hits["lru"]


@pytest.mark.parametrize("name", ["lru", "arc"])
def test_a_pinned_key_is_passed_over(name: str) -> None:
    policy = make_policy(name, 3)
    for key in (b"a", b"b", b"c"):
        policy.add(key)
    assert policy.victim(b"d", lambda key: key == b"a") == b"b"
    assert policy.victim(b"d", lambda key: True) is None
    policy.discard(b"a")
    assert policy.victim(b"d", _nobody) == b"c"
    assert policy.victim(b"d", _nobody) is None


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'mru' is not known: allowed are lru and arc"):
        make_policy("mru", 1)
