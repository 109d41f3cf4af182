"""Hand-overs between engines of different layouts: the text of one engine, and all of the prompt but one token pulled.

Ranks are threads of this process, over the same wires as processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, ParallelLayout
from energyopt.core.layouts import describe_layout
from engine.disagg.params import Lend, Transfer
from engine.front import EngineFront
from engine.models import load_model, open_model
from engine.offload import exchange_for
from engine.output import Output
from engine.parallel.fake import ThreadCrew
from engine.parallel.runner import ParallelRunner
from engine.request import SamplingParams
from engine.runner import TorchRunner
from tests.bench.figures import Report
from tests.engine.model.tiny import SPREAD, save_tiny

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 100)
LAYOUTS: tuple[dict[str, int], ...] = ({}, {"tp": 2}, {"tp": 4}, {"pp": 2}, {"tp": 2, "pp": 2})


class Engine:
    """One engine of a layout that hands over through shared memory."""

    def __init__(self, model: Path, layout: dict[str, int]) -> None:
        self.config = EngineConfig.model_validate(
            {
                "model": str(model),
                "device": "cpu",
                "dtype": "float32",
                "threads": 1,
                "max_num_seqs": 4,
                "max_num_batched_tokens": 64,
                "kv": {"memory_bytes": 1 << 22},
                "kv_transfer": {"transport": "shm"},
                "layout": layout,
            }
        )
        clock, opened = MonotonicClock(), open_model(self.config)
        runner: ParallelRunner | TorchRunner
        if layout:
            runner = ParallelRunner(opened, self.config, clock, hire=ThreadCrew)
        else:
            runner = TorchRunner(load_model(self.config), self.config, clock)
        self.front = EngineFront(
            self.config,
            runner,
            opened.tokenizer,
            max_model_len=opened.max_model_len,
            clock=clock,
            remote=exchange_for(self.config, opened, runner, clock),
        )
        self._asked = 0

    async def ask(self, prompt: list[int], tokens: int, transfer: Transfer | None = None) -> list[Output]:
        self._asked += 1
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, transfer=transfer)
        return [output async for output in self.front.generate(prompt, params, request_id=f"r{self._asked}")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, int]], Engine]]:
    model, made = tmp_path_factory.mktemp("dense"), dict[str, Engine]()
    save_tiny(model, **SPREAD, num_key_value_heads=4)

    def make(layout: dict[str, int]) -> Engine:
        if str(layout) not in made:
            made[str(layout)] = Engine(model, layout)
        return made[str(layout)]

    yield make
    for one in made.values():
        one.front.close()


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("target", LAYOUTS, ids=str)
@pytest.mark.parametrize("source", LAYOUTS, ids=str)
def test_any_layout_takes_over_from_any_other(
    engine: Callable[[dict[str, int]], Engine], source: dict[str, int], target: dict[str, int], figure: Report
) -> None:
    async def hand_over() -> None:
        one, other, alone = engine(source), engine(target), engine({})
        for length in LENGTHS:
            prompt = [(11 * at + length) % 250 + 3 for at in range(length)]
            wanted = tokens_of(await alone.ask(prompt, 6))
            await one.front.reset_prefix_cache()
            (lent,) = await one.ask(prompt, 1, Lend())
            await other.front.reset_prefix_cache()
            got = await other.ask(prompt, 6, lent.offer)
            assert tokens_of(got) == wanted
            record = got[-1].record
            assert record is not None
            assert record.cached_by_tier.get("remote", 0) == length - 1

    asyncio.run(hand_over())
    names = [describe_layout(ParallelLayout(**sizes)) for sizes in (source, target)]
    figure(
        f"hand-over {names[0]} to {names[1]}: prompts with the text of one engine", len(LENGTHS), "", f"{len(LENGTHS)}"
    )
