"""Blocks over ranks: any layout's parts make the same block, and what cannot be handed over is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import ParallelLayout
from energyopt.core.errors import ConfigError
from engine.disagg.geometry import Geometry, Shard, ShardedMover, cut, join, shards_of
from engine.disagg.leases import LeaseBook
from engine.disagg.lender import Lender
from engine.disagg.local import LocalSource
from engine.disagg.params import Offer
from engine.disagg.ports import Ask
from engine.kv.tier_counter import TierCounter
from engine.mover import TorchMover

LAYERS, TOKENS, HEADS, DIM, BLOCKS = 4, 8, 4, 6, 5
WHOLE = Geometry(LAYERS, TOKENS, HEADS, DIM * 4)
SIZES = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2)] + [(8, 1)]


def pool(seed: int) -> torch.Tensor:
    """A whole engine's pool, as the runner has it: (layers, blocks, tokens, 2, heads, dim)."""
    return torch.randn(LAYERS, BLOCKS, TOKENS, 2, HEADS, DIM, generator=torch.Generator().manual_seed(seed))


class Engine:
    """The pools of the ranks of one layout, filled as tensor and pipeline ranks would."""

    def __init__(self, tp: int, pp: int, content: torch.Tensor | None = None) -> None:
        self.shards = shards_of(WHOLE, ParallelLayout(tp=tp, pp=pp))
        whole = torch.zeros_like(pool(0)) if content is None else content
        self.pools = [
            whole[s.layers.start : s.layers.stop, :, :, :, s.heads.start : s.heads.stop].contiguous()
            for s in self.shards
        ]
        ranks = [TorchMover(part, "rank") for part in self.pools]
        self.mover = ShardedMover("whole", WHOLE, self.shards, ranks)

    def whole(self) -> torch.Tensor:
        """Written out by hand: what all ranks hold together."""
        found = torch.full_like(pool(0), float("nan"))
        for shard, part in zip(self.shards, self.pools, strict=True):
            found[shard.layers.start : shard.layers.stop, :, :, :, shard.heads.start : shard.heads.stop] = part
        return found


@pytest.mark.parametrize("source", SIZES, ids=str)
@pytest.mark.parametrize("target", SIZES, ids=str)
def test_any_layout_hands_over_to_any_other(source: tuple[int, int], target: tuple[int, int]) -> None:
    content = pool(1)
    giver, taker = Engine(*source, content), Engine(*target)
    clock = MonotonicClock()
    book = LeaseBook(clock)
    way = LocalSource(Lender(book, giver.mover, TierCounter("remote"), clock))
    lease = book.lend(((3, 1, 4),), 24, bytes(16))
    offer = Offer("e" * 32, lease.id, "", 0, "whole", 24, lease.tables)
    pieces = way.fetch(Ask(offer, taker.mover.layout, bytes(16), ((0, 0), (0, 1), (0, 2))))
    taker.mover.write([0, 2, 4], [piece.view for piece in pieces])
    got = taker.whole()
    assert torch.equal(got[:, [0, 2, 4]], content[:, [3, 1, 4]])
    assert not got[:, [1, 3]].any(), "no other block was touched"


@given(tp=st.sampled_from([1, 2, 4, 8, 12]), pp=st.integers(1, 4), heads=st.sampled_from([1, 2, 3, 4, 8]))
def test_every_rank_has_its_share_and_together_they_have_all(tp: int, pp: int, heads: int) -> None:
    whole = Geometry(5, 2, heads, 3)
    if heads % tp and tp % heads:
        with pytest.raises(ConfigError, match=f"tp = {tp} cannot hand over {heads} key/value heads"):
            shards_of(whole, ParallelLayout(tp=tp, pp=pp))
        return
    shards = shards_of(whole, ParallelLayout(tp=tp, pp=pp))
    block = memoryview(bytearray(number % 251 for number in range(whole.block_bytes)))
    parts = [cut(block, whole, shard) for shard in shards]
    again = memoryview(bytearray(whole.block_bytes))
    join(parts, whole, shards, again)
    assert again == block
    assert sum(map(len, parts)) == whole.block_bytes * max(1, tp // heads)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="dcp = 2 hands nothing over"):
        shards_of(WHOLE, ParallelLayout(tp=4, dcp=2))
    with pytest.raises(ConfigError, match="pp = 9 is not allowed: the model has 4 layers"):
        shards_of(WHOLE, ParallelLayout(pp=9))
    shards = shards_of(WHOLE, ParallelLayout(tp=2))
    block = memoryview(bytearray(WHOLE.block_bytes))
    with pytest.raises(ConfigError, match="do not hold the whole block"):
        join([cut(block, WHOLE, shards[0])], WHOLE, shards[:1], block)
    with pytest.raises(ConfigError, match="A block has 3 bytes"):
        cut(block[:3], WHOLE, shards[0])
    with pytest.raises(ConfigError, match="its share is"):
        join([block[:3]], WHOLE, shards[:1], block)
    ranks: Sequence[TorchMover] = [TorchMover(pool(0), "rank")]
    with pytest.raises(ConfigError, match="A rank's block has"):
        ShardedMover("whole", WHOLE, (Shard(range(2), range(4)),), ranks)
