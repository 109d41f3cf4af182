"""Blocks whose parts lie with several ranks are moved whole, as those of one rank."""

from __future__ import annotations

import numpy as np
import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, TierConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes
from engine.batch import Batch, ScheduledRequest
from engine.kv.configured import cache_for
from engine.models import load_model, open_model
from engine.offload import mover_for, tiers_for
from engine.runner import TorchRunner
from tests.engine.model.ranks import BLOCK, drive, request, spread


@pytest.mark.parametrize("sizes", [{"tp": 2, "pp": 3}, {"tp": 4}], ids=str)
def test_blocks_over_ranks_are_moved_as_those_of_one(six_layers: EngineConfig, sizes: dict[str, int]) -> None:
    """So tiers keep them, and engines of other layouts take them over."""
    loaded = load_model(six_layers)
    one = TorchRunner(loaded, six_layers, MonotonicClock())
    runner, changed = spread(six_layers, **sizes)
    try:
        movers = mover_for(six_layers, loaded, one), mover_for(changed, open_model(changed), runner)
        assert len({mover.layout for mover in movers}) == 1
        assert one.cache.bytes_per_block == movers[0].block_bytes == movers[1].block_bytes
        prompt = list(range(3 * BLOCK))
        for computing in (one, runner):
            computing.run(Batch((ScheduledRequest(request(prompt, range(5)), 0, len(prompt), True),)))
        parts = [[mover.allocate(mover.block_bytes) for _ in range(3)] for mover in movers]
        for mover, views in zip(movers, parts, strict=True):
            mover.read([2, 0, 1], views)
        for ours, theirs in zip(*parts, strict=True):
            assert np.allclose(np.frombuffer(ours, np.float32), np.frombuffer(theirs, np.float32), atol=1e-5)
            assert np.frombuffer(ours, np.float32).any()
        movers[1].write([8, 6, 7], parts[0])  # what one rank computed, into the pools of several
        tokens = []
        for blocks in (range(5), (6, 7, 8, 9)):
            step = ScheduledRequest(request([*prompt, 9], blocks, temperature=0, logprobs=0), len(prompt), 1, True)
            (sampled,) = runner.run(Batch((step,))).sampled
            assert sampled is not None
            tokens.append(sampled.token)
        assert len(set(tokens)) == 1
    finally:
        runner.close()


def test_what_cannot_be_moved_whole_is_refused(eight_experts: EngineConfig) -> None:
    for sizes, words in (({"tp": 2, "dcp": 2}, "dcp = 2"), ({"dp": 2, "ep": 2}, "one cache")):
        runner, changed = spread(eight_experts, **sizes)
        try:
            with pytest.raises(ConfigError, match=words):
                mover_for(changed, open_model(changed), runner)
        finally:
            runner.close()


def test_prefixes_come_back_from_a_tier_into_all_ranks(
    six_layers: EngineConfig, six_layers_answers: list[list[int]]
) -> None:
    tier = TierConfig(kind="host", bytes_per_host=Bytes(2**22))
    kept = six_layers.model_copy(update={"kv": six_layers.kv.model_copy(update={"tiers": (tier,)})})
    runner, changed = spread(kept, tp=2)
    tiers = tiers_for(changed, open_model(changed), runner, MonotonicClock())
    assert tiers is not None
    cache = cache_for(changed, runner.cache, tiers)
    assert drive(runner, changed, cache=cache) == six_layers_answers
    cache.reset("device")
    assert drive(runner, changed, cache=cache) == six_layers_answers
    assert sum(count.loads for count in cache.counts()) > 0
    cache.close()
    runner.close()
