"""How well the cost model tells the steps of the real engine on this machine: prints terms and error."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from energyopt.compose.rig import LoadedEngine, RunningEngine, ignore_request, load_engine
from energyopt.core.config import EngineConfig
from energyopt.core.records import StepRecord
from engine.request import SamplingParams
from tests.bench.figures import Report

SECONDS = 20.0


async def _serve(engine: RunningEngine, clients: int, vocabulary: int) -> None:
    """Clients that ask one prompt after another, of lengths that differ, until the time is over."""
    chance, end = random.Random(1), time.monotonic() + SECONDS

    async def client(number: int) -> None:
        asked = 0
        while time.monotonic() < end:
            prompt = [chance.randrange(vocabulary) for _ in range(chance.choice([20, 60, 200, 600]))]
            params = SamplingParams(max_tokens=chance.randrange(5, 60), temperature=0, ignore_eos=True)
            async for _ in engine.front.generate(prompt, params, request_id=f"{number}-{asked}"):
                pass
            asked += 1

    await asyncio.gather(*(client(number) for number in range(clients)))


def _ignore_step(step: StepRecord) -> None:
    """The ledger has it."""


@pytest.mark.bench
def test_the_fit_of_a_tiny_model(tiny_model: Path, figure: Report) -> None:
    config = EngineConfig(model=str(tiny_model), max_num_seqs=16, threads=1)
    ready: LoadedEngine = load_engine(config, "none")
    engine = ready.start(_ignore_step, ignore_request)
    try:
        asyncio.run(_serve(engine, clients=8, vocabulary=200))
        report = engine.meter.ledger.weigh.report()
    finally:
        engine.close()
    assert report is not None
    lines = [f"{report.steps:,} steps, {report.prefill_steps:,} with prefill; error {report.error}; {report.trusted=}"]
    lines += [f"  {term:16s} {seconds * 1e6:12.3f} us" for term, seconds in report.seconds.items()]
    print("\n" + "\n".join(lines))  # noqa: T201 - a bench exists to print its figures
    assert report.prefill_steps > 50
    assert report.error is not None
    figure("cost model: relative error over steps of a tiny model", report.error, "", "under 1")
    assert report.error < 1
