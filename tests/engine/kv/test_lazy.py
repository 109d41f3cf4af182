"""Lazy stores: nothing while there is room, and nothing lost when there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.kv.blocks import BlockPool
from engine.kv.lazy import LazyOffers
from engine.kv.ports import Transfer

if TYPE_CHECKING:
    from tests.engine.kv.conftest import WholeEngine

BLOCK_BYTES = 2 * 2 * 16 * 2 * 8 * 4


def _cached(pool: BlockPool, *names: bytes) -> list[int]:
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.register(block, name)
    pool.free(blocks)
    return blocks


def test_blocks_are_offered_once_when_their_turn_comes() -> None:
    pool = BlockPool(8)
    lazy = LazyOffers(pool, reserve=3)
    a, b = _cached(pool, b"a", b"b")
    assert lazy.due() == [], "six blocks are free"
    c, d = _cached(pool, b"c", b"d")
    assert lazy.due() == []
    held = pool.allocate(3)
    assert lazy.due() == [Transfer(b"a", a), Transfer(b"b", b)], "one is free, two follow"
    assert lazy.due() == []
    held += pool.allocate(1)
    assert lazy.due() == [Transfer(b"c", c)]
    held += pool.allocate(2)
    assert lazy.due() == [Transfer(b"d", d)]
    pool.free(held)
    pool.reset()
    assert lazy.due() == []


def test_a_block_with_new_content_is_offered_again() -> None:
    pool = BlockPool(2)
    lazy = LazyOffers(pool, reserve=4)
    (block,) = _cached(pool, b"old")
    assert lazy.due() == [Transfer(b"old", block)]
    held = pool.allocate(2)
    pool.register(block, b"new")
    pool.free(held)
    assert lazy.due() == [Transfer(b"new", block)]


def test_what_the_device_evicts_is_below(tiny_model: Path, whole_engine: Callable[..., WholeEngine]) -> None:
    host = {"kind": "host", "bytes_per_host": 400 * BLOCK_BYTES}
    engine = whole_engine(
        str(tiny_model), host, memory_bytes=48 * BLOCK_BYTES, tier_store="lazy", max_num_batched_tokens=128
    )
    prompts = [[start + at % 40 for at in range(100)] for start in range(30, 50)]
    texts = [engine.ask(prompts[0])]
    engine.settle()
    assert engine.count("host").stores == 0, "there is room on the device"
    texts += [engine.ask(prompt) for prompt in prompts[1:]]
    engine.settle()
    assert engine.count("host").stores > 0
    for prompt, text in zip(prompts, texts, strict=True):
        assert engine.ask(prompt) == text
        assert engine.records[-1].cached_tokens == 96
    assert engine.count("host").loads > 0
