"""Offload as its users test it: greedy text, bytes stored, device forgotten, bytes loaded, the same text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.records import RequestRecord
from engine.front import EngineFront
from engine.kv.tiers import Tiers
from engine.models import load_model, resolve_model
from engine.offload import tiers_for
from engine.request import SamplingParams
from engine.runner import TorchRunner

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class Engine:
    """A whole engine with tiers, asked from a plain test."""

    def __init__(self, model: str, *tiers: dict[str, object], **kv: object) -> None:
        config = EngineConfig.model_validate(
            {
                "model": model,
                "device": "cpu",
                "dtype": "float32",
                "threads": 1,
                "kv": {"memory_bytes": 1 << 28, "tiers": tiers, **kv},
            }
        )
        clock, loaded = MonotonicClock(), load_model(config)
        runner = TorchRunner(loaded, config, clock)
        tiers_made = tiers_for(config, loaded, runner, clock)
        assert tiers_made is not None
        self.tiers: Tiers = tiers_made
        self.tokenizer = loaded.tokenizer
        self.records: list[RequestRecord] = []
        self.front = EngineFront(
            config,
            runner,
            loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            clock=clock,
            tiers=self.tiers,
            on_request=self.records.append,
        )
        self._asked = 0

    def ask(self, prompt: list[int]) -> str:
        return asyncio.run(self._ask(prompt))

    def reset(self, tier: str | None) -> int:
        return asyncio.run(self.front.reset_prefix_cache(tier))

    async def _ask(self, prompt: list[int]) -> str:
        self._asked += 1
        outputs = self.front.generate(prompt, GREEDY, request_id=f"r{self._asked}")
        return "".join([output.text async for output in outputs])


@contextmanager
def _engine(model: str, *tiers: dict[str, object], **kv: object) -> Iterator[Engine]:
    engine = Engine(model, *tiers, **kv)
    try:
        yield engine
    finally:
        engine.front.close()


def _settled(engine: Engine) -> None:
    """Until every tier has what waits; the step loop offers blocks a moment after the last token."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if engine.tiers.busy else quiet + 1
        time.sleep(0.01)


@pytest.fixture(params=["tiny", "smollm2-135m"])
def model(request: pytest.FixtureRequest, tiny_model: Path) -> str:
    if request.param == "tiny":
        return str(tiny_model)
    resolve_model(request.param)
    return str(request.param)


def test_a_reload_gives_the_same_text(model: str, tmp_path: Path) -> None:
    host = {"kind": "host", "bytes_per_host": 1 << 26}
    disk = {"kind": "disk", "bytes_per_host": 1 << 28, "path": str(tmp_path)}
    with _engine(model, host, disk) as engine:
        prompt = engine.tokenizer.encode("The capital of France is Paris, and the capital of Italy is Rome. " * 6)[:90]
        first = engine.ask(prompt)
        _settled(engine)
        assert [count.store_bytes > 0 for count in engine.tiers.counts()] == [True, True]
        assert engine.reset("device") > 0
        assert engine.ask(prompt) == first
        assert engine.records[-1].cached_by_tier == {"host": 80}
        assert engine.tiers.counts()[0].load_bytes > 0
        engine.reset("device")
        engine.reset("host")
        _settled(engine)
        assert engine.ask(prompt) == first
        assert engine.records[-1].cached_by_tier == {"disk": 80}
        assert engine.tiers.counts()[1].load_bytes > 0
    with _engine(model, disk) as engine:
        assert engine.ask(prompt) == first, "a restart finds the disk warm"
        assert engine.records[-1].cached_by_tier == {"disk": 80}
