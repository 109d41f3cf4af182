"""What rounding costs: measured against float32, on tiny models and on the demo model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes
from engine.batch import Batch, CacheShape, ScheduledRequest
from engine.divergence import _text, divergence
from engine.kv.layout import FullAttention, SlidingWindow
from engine.native.runner import NativeRunner
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.runners import open_runner

if TYPE_CHECKING:
    from tests.engine.native.conftest import Tiny

TEXT = Path(__file__).parents[3].joinpath("README.md").read_text("utf-8")
DEMO = EngineConfig(model="smollm2-135m", device="cpu", threads=1)


def test_fewer_bits_cost_more_and_none_cost_nothing(tiny: Tiny) -> None:
    costs = []
    for changes in ({"quantization": "none", "dtype": "float32"}, {}, {"quantization": "int4"}):
        config = EngineConfig.model_validate({**tiny.config.model_dump(), "threads": 1, **changes})
        found = divergence(config, TEXT, 60)
        assert found.tokens == 60
        costs.append(found.nats)
    assert abs(costs[0]) < 1e-6
    assert 1e-5 < costs[1] < 0.05
    assert costs[2] > 5 * costs[1]


def test_a_short_text_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="The text has 3 tokens; 60 are asked for"):
        divergence(tiny.config, "abc", 60)


def test_a_text_longer_than_the_pool_is_refused() -> None:
    windowed = (FullAttention(16), SlidingWindow(16, 64))
    assert _text(CacheShape(6, 16, Bytes(1), windowed), range(40)).other_tables == [[3, 4, 5]]
    with pytest.raises(ConfigError, match="40 tokens take 6 KV blocks, and there is room for 5: compare over fewer"):
        _text(CacheShape(5, 16, Bytes(1), windowed), range(40))


@pytest.mark.long
def test_the_demo_model_loses_next_to_nothing() -> None:
    found = divergence(DEMO, TEXT, 128)
    assert found.weights == "Q4_1"
    assert found.nats <= 0.004
    assert abs(found.losses[1] - found.losses[0]) < 0.03


@pytest.mark.long
def test_the_native_step_is_the_cheaper_one() -> None:
    """CPU seconds of one thread, by turns, so that other processes disturb little; wall time is the bench's."""

    def seconds(runner: Any) -> float:
        requests = []
        for number in range(8):
            request = Request(
                str(number), tuple(range(100, 120)), SamplingParams(temperature=0), MonotonicClock().now()
            )
            request.block_ids = [2 * number, 2 * number + 1]
            requests.append(request)
        batch = Batch(tuple(ScheduledRequest(request, 19, 1, True) for request in requests))
        start = time.process_time()
        runner.run(batch)
        return time.process_time() - start

    config = DEMO.model_copy(update={"kv": KvConfig(memory_bytes=Bytes(2**26))})
    _, native = open_runner(config, MonotonicClock())
    _, twin = open_runner(config.model_copy(update={"kernels": "torch"}), MonotonicClock())
    assert isinstance(native, NativeRunner)
    assert isinstance(twin, TorchRunner)
    rounds = [(seconds(native), seconds(twin)) for _ in range(4)]
    native.close()
    twin.close()
    assert min(one for one, _ in rounds) * 1.3 < min(other for _, other in rounds)
