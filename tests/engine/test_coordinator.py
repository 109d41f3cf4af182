"""Prefix lookup and the blocks of requests, without a scheduler in between."""

from __future__ import annotations

import pytest

from energyopt.core.errors import EngineError
from energyopt.core.units import Bytes, Seconds
from engine.batch import CacheShape
from engine.kv.blocks import DEVICE
from engine.kv.coordinator import KvCoordinator
from engine.request import Request, SamplingParams

BLOCK = 4


def coordinator(num_blocks: int = 32, *, prefix_caching: bool = True) -> KvCoordinator:
    return KvCoordinator(CacheShape(num_blocks, BLOCK, Bytes(1)), prefix_caching=prefix_caching)


def request(prompt: list[int], name: str = "r") -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_tokens=4), Seconds(0.0))


def compute(cache: KvCoordinator, one: Request) -> None:
    """Admit and compute all known tokens, as one step would."""
    cache.admit(one, cache.lookup(one))
    assert cache.grow(one, one.num_tokens)
    cache.commit(one, one.num_tokens)


@pytest.mark.parametrize("divergence", range(17))
def test_a_hit_is_the_common_prefix_in_whole_blocks(divergence: int) -> None:
    cache = coordinator()
    compute(cache, request(list(range(16))))
    other = request([*range(divergence), *range(100, 116 - divergence)])
    hit = cache.lookup(other)
    assert hit.tokens == min(divergence, 15) // BLOCK * BLOCK
    assert sum(hit.by_tier.values()) == hit.tokens
    assert len(hit.blocks) * BLOCK == hit.tokens


@pytest.mark.parametrize("length", range(1, 14))
def test_one_token_is_always_left_to_compute(length: int) -> None:
    cache = coordinator()
    first, again = request(list(range(length))), request(list(range(length)), "again")
    compute(cache, first)
    assert cache.lookup(again).tokens == (length - 1) // BLOCK * BLOCK


def test_lookup_stops_at_the_first_miss() -> None:
    cache = coordinator(num_blocks=8)
    first = request(list(range(16)))
    compute(cache, first)
    cache.free(first)
    cache.pool.allocate(5)  # four worthless blocks and the tail of the request
    assert cache.lookup(request(list(range(17)))).tokens == 12
    first_block, _, third_block = (cache.pool.find(name) for name in first.block_hashes[:3])
    assert first_block is not None
    assert third_block is not None
    cache.pool.touch([first_block, third_block])
    cache.pool.allocate(1)  # the second, the only one idle
    assert cache.pool.find(first.block_hashes[2]) == third_block
    assert cache.lookup(request(list(range(17)))).tokens == 4


def test_blocks_are_found_only_after_they_were_computed() -> None:
    cache = coordinator()
    first = request(list(range(16)))
    cache.admit(first, cache.lookup(first))
    assert cache.grow(first, 16)
    assert cache.lookup(request(list(range(16)))).tokens == 0
    cache.commit(first, 7)
    assert cache.lookup(request(list(range(16)))).tokens == 4
    cache.commit(first, 16)
    assert cache.lookup(request(list(range(16)))).tokens == 12


def test_a_shared_prefix_is_held_once() -> None:
    cache = coordinator()
    first, second = request(list(range(16)), "a"), request([*range(16), 99], "b")
    compute(cache, first)
    compute(cache, second)
    assert second.block_ids[:4] == first.block_ids
    assert cache.pool.num_used == 5
    assert cache.hit_tokens[DEVICE] == 16
    cache.check_integrity([first, second])
    cache.free(first)
    cache.check_integrity([second])
    cache.free(second)
    assert cache.pool.num_used == 0
    assert cache.pool.num_cached == 4


def test_answers_are_cached_like_prompts() -> None:
    cache = coordinator()
    first = request(list(range(6)))
    compute(cache, first)
    first.output += [50, 51, 52]
    assert cache.grow(first, 9)
    cache.commit(first, 9)
    follow_up = request([*range(6), 50, 51, 60, 61], "follow-up")
    assert cache.lookup(follow_up).tokens == 8


def test_growing_beyond_the_pool_changes_nothing() -> None:
    cache = coordinator(num_blocks=2)
    first = request(list(range(20)))
    assert cache.room(first, 100) == 8
    assert not cache.grow(first, 9)
    assert first.block_ids == []
    assert cache.grow(first, 8)
    assert cache.pool.num_available == 0


def test_admission_counts_cached_blocks_that_nobody_uses() -> None:
    cache = coordinator(num_blocks=5)
    first = request(list(range(16)))
    compute(cache, first)
    cache.free(first)
    again = request([*range(16), 1, 2], "again")
    hit = cache.lookup(again)
    assert hit.tokens == 16
    assert cache.can_admit(again, hit, spare=0)
    assert not cache.can_admit(again, hit, spare=1)
    assert not cache.can_admit(request(list(range(50, 71)), "other"), cache.lookup(request([1])), spare=0)


def test_without_caching_nothing_is_found_or_kept() -> None:
    cache = coordinator(prefix_caching=False)
    first = request(list(range(16)))
    compute(cache, first)
    assert cache.lookup(request(list(range(16)))).tokens == 0
    cache.free(first)
    assert cache.pool.num_cached == 0


def test_reset_forgets_prefixes_but_not_running_requests() -> None:
    cache = coordinator()
    first = request(list(range(16)))
    compute(cache, first)
    assert cache.reset() == 4
    assert cache.lookup(request(list(range(16)))).tokens == 0
    cache.check_integrity([first])
    cache.free(first)
    assert cache.pool.num_free == 32


def test_a_leak_is_named() -> None:
    cache = coordinator()
    compute(cache, request(list(range(16))))
    with pytest.raises(EngineError, match="reference counts differ"):
        cache.check_integrity([])
